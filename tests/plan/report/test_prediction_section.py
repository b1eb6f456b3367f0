"""The report's section on the predicted step time, on runs with known times."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import run_files
from synthetic_run import SPAN_MS, Synthetic, make_run

from frog.core.config import TrainConfig
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import read_history
from frog.observe.view.report import render_report
from frog.plan.estimate.hardware import find_cluster
from frog.plan.links import payload_rate
from frog.plan.machine.measured import Row, comparison_lines, measured_phases, network_of
from frog.plan.machine_command import compare_with_run

PROFILE = """\
source = "measured on a test's machine"
gpu = "CPU"
gpus_per_node = 2
nvlink_domain = 2
network = "1 GB/s"
[machine]
cores = 2
[machine.worlds.2]
threads = 1
product = "50 GFLOP/s"
launch = "1 us"
memory = "10 GB/s"
optimizer = { "1 MB" = "1 ms" }
layer.fp32 = { fixed = "1 ms", products = "50 GFLOP/s" }
head.fp32 = { fixed = "1 ms", products = "50 GFLOP/s" }
links.all_reduce = { "1 kB" = "100 us", "1 MB" = "2 ms" }
links.all_gather = { "1 kB" = "100 us", "1 MB" = "2 ms" }
links.reduce_scatter = { "1 kB" = "100 us", "1 MB" = "2 ms" }
links.all_to_all = { "1 kB" = "100 us", "1 MB" = "2 ms" }
links.send_recv = { "1 kB" = "100 us", "1 MB" = "2 ms" }
links.tensor = { "1 kB" = "100 us", "1 MB" = "2 ms" }
links.sequence = { "1 kB" = "100 us", "1 MB" = "2 ms" }
"""


def text_of(folder: RunFolder) -> str:
    html = render_report(folder)
    inside = re.search(r'<section id="prediction">.*?</section>', html, re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", inside[0])) if inside else ""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return make_run(tmp_path / "r")


def test_phases_are_those_of_the_spans(run: RunFolder) -> None:
    measured = {name: seconds * 1e3 for name, seconds in measured_phases(read_history(run)).items()}
    assert list(measured) == ["forward, backward", "reduce", "optimize", "data, events"]
    assert measured["forward, backward"] == pytest.approx(SPAN_MS["forward"] + SPAN_MS["backward"], rel=0.03)
    assert measured["optimize"] == pytest.approx(SPAN_MS["optimize"] + SPAN_MS["zero"], rel=0.03)


def test_report_shows_prediction_next_to_measurement(run: RunFolder) -> None:
    Path("machine.toml").write_text(PROFILE)
    text = text_of(run)
    assert "Predicted by machine.toml , a profile measured on a test's machine" in text.replace("&#39;", "'")
    assert re.search(r" reduce [\d.]+ [\d.]+ [+-]\d+ % optimize ", text)
    assert re.search(r"data, events \S [\d.]+ \S step [\d.]+ [\d.]+ [+-]\d+ %", text)
    rows = compare_with_run(str(run.path), find_cluster("machine.toml")).splitlines()
    assert rows[0] == f"{run.path}, 4 ranks"
    assert [row.split()[0] for row in rows[4:]] == ["forward,", "reduce", "optimize", "data,", "step"]


def test_prediction_of_a_run_on_a_slow_network_has_its_delay_and_rate(run: RunFolder) -> None:
    link = {"rate_bits_per_s": 1e8, "delay_s": 0.02, "mtu": 9000}
    run.launcher_events.write_text(json.dumps(run_files.event("launch", network=link)) + "\n")
    network = network_of(read_history(run))
    assert network is not None
    assert (len(network.nodes), network.delay_s, network.bytes_per_s) == (4, 0.02, payload_rate(1e8, 9000))


def test_run_without_a_slow_network_is_predicted_without(run: RunFolder) -> None:
    assert network_of(read_history(run)) is None


def test_report_without_a_profile_has_no_section(run: RunFolder) -> None:
    assert text_of(run) == ""


def test_report_with_half_a_profile_names_the_mistake(run: RunFolder) -> None:
    Path("machine.toml").write_text(PROFILE[: PROFILE.index("links.send_recv")])
    assert "machine.worlds.2.links.send_recv is missing" in text_of(run)


def test_run_that_no_cost_covers_gets_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("machine.toml").write_text(PROFILE)
    text = text_of(make_run(tmp_path / "r", Synthetic(train=TrainConfig(compile=True))))
    assert "train.compile: only eager layers are measured" in text


def test_row_without_a_prediction_has_no_error() -> None:
    lines = list(comparison_lines([Row("step", 0.012, 0.010), Row("data, events", None, 0.001)]))
    assert lines[1].split() == ["step", "12.0", "10.0", "+20%"]
    assert lines[2].split() == ["data,", "events", "-", "1.0"]
