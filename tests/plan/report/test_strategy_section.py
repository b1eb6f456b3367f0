"""The report's section on the strategy: measurements and formulas, on runs with known numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import GRADIENT_BYTES, MS, START_MONO_NS, Synthetic, make_run

from frog.core.config import StrategyConfig, TrainConfig
from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import read_history
from frog.observe.view.report import render_report
from frog.plan.report.strategy_section import strategy_section


def section_of(folder: RunFolder) -> dict[str, Any]:
    section = strategy_section(folder.read_run_json(), read_history(folder))
    assert section is not None
    return section


def text_of(folder: RunFolder) -> str:
    html = render_report(folder)
    inside = re.search(r'<section id="strategy">.*?</section>', html, re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", inside[0])) if inside else ""


def change_events(folder: RunFolder, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    for rank in folder.event_ranks():
        path = folder.rank_events(rank)
        events = [change(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_ddp_bytes_match_formula(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r")
    section = section_of(folder)
    assert [one["rank"] for one in section["traffic"]] == [0, 1, 2, 3]
    for one in section["traffic"]:
        assert one["sent_bytes"] == 2 * 3 / 4 * GRADIENT_BYTES
        assert one["ratio"] == 1.0
    text = text_of(folder)
    assert "gradients are averaged" in text
    assert "In step 60, rank 0 sent 3.8 MiB, as did every other rank" in text
    assert "dp 4 all_reduce gradients 1 2.5 MiB 3.8 MiB 3.8 MiB 1.00" in text
    assert 'class="off"' not in render_report(folder)


def test_excess_traffic_is_highlighted(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(collectives=[("all_reduce", "dp", 2 * GRADIENT_BYTES)]))
    assert section_of(folder)["detail"]["ratio"] == 2.0
    assert '<span class="off">2.00</span>' in render_report(folder)


def test_large_traffic_without_formula_is_named(tmp_path: Path) -> None:
    known = ("all_reduce", "dp", GRADIENT_BYTES)
    little = make_run(tmp_path / "a", Synthetic(collectives=[known, ("all_gather", "dp", 48)]))
    much = make_run(tmp_path / "b", Synthetic(collectives=[known, ("all_gather", "dp", 10**6)]))
    assert "no formula" not in text_of(little)
    assert "dp 4 all_gather no formula 1 976.6 KiB 732.4 KiB" in text_of(much)


def test_world_axis_and_evaluations_are_excluded(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(collectives=[("all_reduce", "world", 24)]))
    assert section_of(folder)["detail"]["sent_bytes"] == 0
    folder = make_run(tmp_path / "s")
    path = folder.rank_events(0)
    step = [json.loads(line) for line in path.read_text().splitlines() if '"collective"' in line][-1]
    evaluation = [json.loads(line) for line in path.read_text().splitlines() if '"evaluate"' in line][-1]
    assert step["step"] == evaluation["step"] == 60
    during = {**step, "seq": 10**6, "start_ns": evaluation["start_ns"] + MS, "end_ns": evaluation["end_ns"]}
    path.write_text(path.read_text() + json.dumps(during) + "\n")
    assert section_of(folder)["detail"]["num_messages"] == 1


def test_memory_is_compared_with_formula(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(train=TrainConfig(precision="bf16")))
    (first, *_) = section_of(folder)["memory"]["rows"]
    assert [part["ratio"] for part in first["parts"]] == [1.0, 1.0, 1.0, None]
    assert "parameters gradients optimizer activations" in text_of(folder)
    half = make_run(tmp_path / "s", Synthetic(strategy=StrategyConfig(name="zero3")))
    assert [part["ratio"] for part in section_of(half)["memory"]["rows"][0]["parts"]][:3] == [4.0, 4.0, 4.0]


def test_traffic_without_formula_is_shown(tmp_path: Path) -> None:
    kind = Synthetic(strategy=StrategyConfig(tp=2), train=TrainConfig(precision="bf16"))
    detail = section_of(make_run(tmp_path / "r", kind))["detail"]
    assert (detail["ratio"], detail["sent_bytes"]) == (None, GRADIENT_BYTES)
    assert "dp 2 all_reduce no formula" in text_of(make_run(tmp_path / "s", kind))


def test_overlap_is_time_without_waiting(tmp_path: Path) -> None:
    assert [row["fraction"] for row in section_of(make_run(tmp_path / "a"))["overlap"]] == [0.0] * 4
    rows = section_of(make_run(tmp_path / "b", Synthetic(wait_share=0.3)))["overlap"]
    assert [row["fraction"] for row in rows] == pytest.approx([0.7] * 4, abs=1e-6)


def test_bubble_is_computed_from_spans(tmp_path: Path) -> None:
    """GPipe on two ranks with two micro-batches, forward 1 ms, backward 2 ms: 3 of 9 ms idle, (p-1)/(m+p-1) = 1/3."""
    kind = Synthetic(
        segments=[(2, 0, 4)],
        train=TrainConfig(grad_accum=2),
        strategy=StrategyConfig(pp=2, schedule="gpipe"),
        num_micro=2,
    )
    folder = make_run(tmp_path / "r", kind)
    when = {  # (rank, phase, micro): start and end in ms
        (0, "forward", 0): (0, 1), (0, "forward", 1): (1, 2), (0, "backward", 0): (5, 7), (0, "backward", 1): (7, 9),
        (1, "forward", 0): (1, 2), (1, "forward", 1): (2, 3), (1, "backward", 0): (3, 5), (1, "backward", 1): (5, 7),
    }  # fmt: skip
    for rank in (0, 1):
        path = folder.rank_events(rank)
        events = [json.loads(line) for line in path.read_text().splitlines()]
        for event in events:
            place = when.get((rank, event.get("phase"), event.get("micro")))
            if event["event"] == "span" and place is not None:
                base = START_MONO_NS + event["step"] * 40 * MS
                event["start_ns"], event["end_ns"] = base + place[0] * MS, base + place[1] * MS
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    bubble = section_of(folder)["bubble"]
    assert [row["fraction"] for row in bubble["rows"]] == pytest.approx([1 / 3, 1 / 3])
    assert bubble["mean"] == pytest.approx(bubble["expected"]) == pytest.approx(1 / 3)
    assert "The formula of gpipe with 2 ranks and 2 micro-batches, (p-1)/(m+p-1), says 33 %" in text_of(folder)


def test_mesh_is_shown_as_table(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(strategy=StrategyConfig(tp=2)))
    mesh = section_of(folder)["mesh"]
    assert mesh["axes"] == {"dp": 2, "tp": 2}
    assert [row["places"] for row in mesh["rows"]] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert "dp 2 x tp 2" in text_of(folder)


def test_run_without_strategy_and_memory_has_a_section(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(memory=None))
    run = json.loads(folder.run_json.read_text())
    del run["config"]["strategy"]
    write_json(folder.run_json, run)
    section = section_of(folder)
    assert (section["memory"], section["bubble"]) == (None, None)
    assert section["detail"]["ratio"] == 1.0
    assert [row["fraction"] for row in section["overlap"]] == [0.0] * 4
    assert "What a step sends" in text_of(folder)


def test_config_of_another_version_has_no_section(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r")
    run = json.loads(folder.run_json.read_text())
    run["config"]["strategy"]["wormholes"] = 3
    write_json(folder.run_json, run)
    assert text_of(folder) == ""


def test_resumed_run_shows_last_world(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(4, 0, 75), (2, 50, 120)]))
    section = section_of(folder)
    assert [one["rank"] for one in section["traffic"]] == [0, 1]
    assert section["detail"]["sent_bytes"] == GRADIENT_BYTES
    assert section["step"] == 120


def test_single_rank_shows_only_memory(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 5)]))
    section = section_of(folder)
    assert (section["traffic"], section["mesh"], section["overlap"]) == ([], None, [])
    assert [part["ratio"] for part in section["memory"]["rows"][0]["parts"]][:3] == [1.0, 1.0, 1.0]
    assert "nothing is sent" in text_of(folder)


def test_native_implementation_has_no_traffic_events(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(collectives=[], strategy=StrategyConfig(implementation="torch")))
    assert "torch records no events for what it sends" in text_of(folder)


def test_overlapped_reduction_has_no_local_norm(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r")
    change_events(folder, lambda e: {**e, "grad_norm_local": None} if e["event"] == "step" else e)
    assert "Strategy" in text_of(folder)


def test_run_without_steps_has_no_section(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 0)]))
    assert text_of(folder) == ""
