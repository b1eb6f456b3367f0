"""`frog plan simulate`: its run folder, read like a real one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from frog.cli import main
from frog.core.config.load import from_dict
from frog.core.errors import ConfigError, UsageError
from frog.core.runs import read_run
from frog.core.runs.event_schema import CollectiveEvent, SpanEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.observe.diagnose.run_diagnosis import diagnose
from frog.observe.view.report import render_report
from frog.plan.simulate.trace import MOST_EVENTS, Span, Trace

WORDS = [
    "plan", "simulate", str(Path(__file__).parents[3] / "config" / "llama3_8b.json"),
    "--cluster", "h100x8", "--micro-batch", "1", "--steps", "3", "--nodes", "2",
]  # fmt: skip
PIPELINE = ["--tp", "2", "--pp", "4", "--global-batch", "16"]
SHARDED = ["--zero", "3", "--global-batch", "16"]


def test_simulated_run_is_read_like_a_real_one_and_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path / "runs" / "simulated")
    assert main([*WORDS, *PIPELINE, "--jitter", "0.02", "--to", str(folder.path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SIMULATED")
    run = read_run(folder)
    assert not run.problems
    assert run.record is not None
    assert run.record.step == 3
    rank = run.ranks[5]
    assert sum(event.phase == "forward" for event in rank.of(SpanEvent)) == 3 * 8
    assert {event.op for event in rank.of(CollectiveEvent)} == {"all_reduce", "recv", "send", "reduce_scatter"}
    steps = [event.end_ns for event in rank.of(StepEvent)]
    printed = re.search(r"^ +2 +(\S+)$", out, re.MULTILINE)
    assert printed is not None
    assert (steps[1] - steps[0]) / 1e9 == pytest.approx(float(printed[1]), rel=2e-3)
    assert diagnose(folder).finding.startswith("simulated run: healthy: 3 steps by 16 ranks")
    assert "Simulated run: no GPU ran this" in render_report(folder)
    assert main(["runs", "--runs", str(folder.path.parent)]) == 0
    assert "completed, simulated" in capsys.readouterr().out


@pytest.mark.parametrize("layout", [PIPELINE, SHARDED], ids=["pipeline", "sharded"])
@pytest.mark.parametrize(
    ("disturbance", "fault", "rank"),
    [(["--slow", "9:5"], "slow", 9), (["--lose", "9@2"], "kill", 9), (["--cut", "1@2"], "cut", 8)],
    ids=["straggler", "lost rank", "cut node"],
)
def test_diagnosis_names_the_simulated_disturbance(
    layout: list[str], disturbance: list[str], fault: str, rank: int, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS, *layout, *disturbance, "--to", str(folder.path)]) == 0
    found = diagnose(folder)
    assert (found.fault, found.rank) == (fault, rank)
    assert folder.read_run_json().count("train", "steps") == 3


@pytest.mark.parametrize(
    ("words", "named", "node"),
    [
        (["--tp", "8", "--slow-network", "1:8"], "communication between nodes takes", None),
        (["--zero", "3", "--slow-network", "0:8", "--jitter", "0.02"], "communication between nodes takes", None),
        (["--tp", "4", "--pp", "2", "--nodes", "4", "--slow-network", "3:8"], "the network of node 3 is slow", 3),
        (["--tp", "8", "--pp", "4", "--nodes", "4", "--slow-network", "1:30"], "the network of node 1 is slow", 1),
        (["--tp", "8", "--jitter", "0.2"], "computing times vary (jitter)", None),
        (["--zero", "3", "--jitter", "0.2"], "computing times vary (jitter)", None),
    ],
)
def test_diagnosis_names_what_slows_a_simulated_run(
    words: list[str], named: str, node: int | None, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS, "--global-batch", "16", *words, "--to", str(folder.path)]) == 0
    found = diagnose(folder)
    assert found.finding.startswith(f"simulated run: {named}")
    assert (found.fault, found.rank, found.node_rank) == ("slow", None, node)
    assert "frog plan search" in found.advice


@pytest.mark.parametrize("words", [["--tp", "8"], ["--zero", "3"], ["--tp", "4", "--pp", "2", "--nodes", "4"]])
def test_simulated_run_without_disturbance_is_healthy(words: list[str], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS, "--global-batch", "16", *words, "--to", str(folder.path)]) == 0
    found = diagnose(folder)
    assert (found.fault, found.also) == ("none", ())


def test_diagnosis_names_a_simulated_straggler_of_a_fifth(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS, *PIPELINE, "--slow", "9:1.2", "--jitter", "0.02", "--to", str(folder.path)]) == 0
    found = diagnose(folder)
    assert found.finding.startswith("simulated run: rank 9 is a straggler")


@pytest.mark.parametrize("disturbance", [["--lose", "9@2"], ["--cut", "1@2"]])
def test_failed_simulated_run_is_not_to_be_resumed(
    disturbance: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS, *PIPELINE, *disturbance, "--to", str(folder.path)]) == 0
    found = diagnose(folder)
    assert "--resume" not in found.advice
    assert "cannot be resumed" in found.advice
    with pytest.raises(ConfigError, match="a simulated run, of which nothing was trained"):
        from_dict(folder.read_run_json().config)
    assert main(["logs", str(folder.path)]) == 2
    assert "a simulated run has no logs" in capsys.readouterr().err
    assert main(["report", str(folder.path)]) == 0
    assert capsys.readouterr().out.startswith("report of a simulated run: ")
    assert "train.log" not in (folder.path / "report.html").read_text()


def test_report_of_a_simulated_run_names_the_lost_rank(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS, *PIPELINE, "--lose", "9@2", "--to", str(folder.path)]) == 0
    record = folder.read_record()
    assert record is not None
    assert record.error is not None
    assert (record.error.rank, record.error.step) == (9, 2)
    assert "simulated: rank 9 was killed by SIGKILL" in render_report(folder)


def test_slow_network_delays_messages_between_nodes_only(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS, *PIPELINE, "--slow-network", "1:8", "--to", str(folder.path)]) == 0
    sent_s = {
        rank: max(
            (event.end_ns - event.start_ns) / 1e9
            for event in read_run(folder).ranks[rank].of(CollectiveEvent)
            if event.op == "send"
        )
        for rank in (0, 4)  # stages 0 and 1; stage 2 is on the other node
    }
    num_bytes, network_bytes_per_s = 2 * 8192 * 4096 / 2, 50e9  # the adapter has 400 Gbit/s
    assert sent_s[4] > 8 * num_bytes / network_bytes_per_s
    assert sent_s[0] < num_bytes / network_bytes_per_s


def test_simulated_run_of_one_lost_rank_has_failed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS[:-2], "--gpus", "1", "--global-batch", "1", "--lose", "0@2", "--to", str(folder.path)]) == 0
    found = diagnose(folder)
    assert (found.fault, found.rank, found.step) == ("kill", 0, 2)


def test_trace_that_is_too_large_for_a_folder_is_refused() -> None:
    trace, now = Trace([[]], num_ranks=MOST_EVENTS), np.zeros(1)
    trace.add(0, Span(1, "forward", 0, now, now))
    with pytest.raises(UsageError, match="more than 2,000,000 events"):
        trace.add(0, Span(1, "backward", 0, now, now))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--slow", "16:2"], "rank 16: ranks are 0 to 15"),
        (["--cut", "2@1"], "node 2: nodes are 0 to 1"),
        (["--lose", "3@9"], "step 9 is not one of the 3 steps"),
        (["--steps", "9999999"], "9,999,999 steps: must be at most 1,000"),
        (["--to", "."], "already exists"),
        (["--pp", "4", "--global-batch", "4"], "1 micro-batches for 4 stages"),
    ],
)
def test_impossible_disturbance_is_refused(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *words]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--slow", "3"], ["--slow", "3:0.5"], ["--lose", "3:1"], ["--jitter", "nan"]])
def test_mistyped_disturbance_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*WORDS, *words])
    assert words[1] in capsys.readouterr().err
