"""The drawn steps and the fractions of phases, against the same computed from the lines of the event files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_run import Synthetic, make_run

from frog.core.runs.folder import RunFolder
from frog.core.runs.history import read_history
from frog.core.runs.vocabulary import PHASES
from frog.observe.view import timeline
from frog.observe.view.timeline import RankFractions, phase_fractions, windows


def events_of(folder: RunFolder, rank: int, kind: str, segment: int = 0) -> list[dict[str, Any]]:
    """Return a rank's events of one kind in a segment."""
    found, number = [], -1
    for line in folder.rank_events(rank).read_text().splitlines():
        event = json.loads(line)
        number += event["event"] == "start"
        if event["event"] == kind and number == segment:
            found.append(event)
    return found


def test_boxes_are_the_events_in_percent_of_the_window(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 30), (3, 20, 60)], num_micro=2))
    for window in windows(read_history(folder)):
        inside = {
            (rank, kind): [
                event
                for event in events_of(folder, rank, kind, segment=1 if rank < 2 else 0)
                if window.first_step <= event["step"] <= window.last_step
            ]
            for rank in range(3)
            for kind in ("span", "collective")
        }
        spans = [event for (_, kind), events in inside.items() for event in events if kind == "span"]
        start_ns = min(event["start_ns"] for event in spans)
        width_ns = max(event["end_ns"] for event in spans) - start_ns
        assert window.duration_ms == width_ns / 1e6
        assert window.phases == [phase for phase in PHASES if phase in {event["phase"] for event in spans}]
        assert [lane["rank"] for lane in window.lanes] == [0, 1, 2]
        for lane in window.lanes:
            for name, kind, label, extra in (
                ("spans", "span", "phase", "micro"),
                ("collectives", "collective", "op", "payload_bytes"),
            ):
                assert lane[name] == [
                    {
                        "name": event[label],
                        "step": event["step"],
                        "extra": event[extra],
                        "left": round(100 * (event["start_ns"] - start_ns) / width_ns, 3),
                        "width": round(100 * (event["end_ns"] - event["start_ns"]) / width_ns, 3),
                        "duration_ms": (event["end_ns"] - event["start_ns"]) / 1e6,
                    }
                    for event in sorted(inside[lane["rank"], kind], key=lambda event: event["start_ns"])
                ]


def test_fractions_are_sums_over_the_events(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 25)], wait_share=0.5))
    for share in phase_fractions(read_history(folder)):
        spans, collectives = (events_of(folder, share.rank, kind) for kind in ("span", "collective"))
        wall_ns = max(event["end_ns"] for event in spans) - min(event["start_ns"] for event in spans)
        sums = dict.fromkeys(PHASES, 0)
        for event in spans:
            sums[event["phase"]] += event["end_ns"] - event["start_ns"]
        assert share.wall_ns == wall_ns
        assert share.phase_ns == {**sums, "other": wall_ns - sum(sums.values())}
        assert share.collective_ns == sum(event["wait_ns"] for event in collectives)
        assert share.collective_bytes == sum(event["payload_bytes"] for event in collectives)
        assert share.num_steps == 25
        assert share.fraction("reduce") == sums["reduce"] / wall_ns
        assert share.collective_fraction == share.collective_ns / wall_ns


@pytest.mark.parametrize(
    ("last", "titles"),
    [
        (1, {"Typical steps": (1, 1)}),
        (2, {"Typical steps": (1, 2)}),
        (4, {"Typical steps": None, "First steps": (1, 2)}),
        (5, {"Typical steps": None, "First steps": (1, 2), "Slowest step": None}),
    ],
)
def test_short_run_has_fewer_windows(last: int, titles: dict[str, tuple[int, int] | None], tmp_path: Path) -> None:
    kind = Synthetic(segments=[(1, 0, last)], eval_every=None, checkpoint_every=None)
    found = windows(read_history(make_run(tmp_path / "r", kind)))
    assert [window.title for window in found] == list(titles)
    for window in found:
        assert titles[window.title] in (None, (window.first_step, window.last_step))


def test_last_evaluation_is_shown_with_the_step_after_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 30)], eval_every=20, checkpoint_every=None))
    for expected in ((30, 30), (20, 21)):
        window = windows(read_history(folder))[-1]
        assert window.title == "Evaluation, checkpoint"
        assert (window.first_step, window.last_step) == expected
        lines = folder.rank_events(0).read_text().splitlines()  # then without the last evaluation
        folder.rank_events(0).write_text("".join(f"{line}\n" for line in lines if not is_evaluation(line, 30)))


def is_evaluation(line: str, step: int) -> bool:
    event = json.loads(line)
    return event["event"] == "span" and (event["phase"], event["step"]) == ("evaluate", step)


def test_slowest_step_is_not_the_first(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 8)], eval_every=None, checkpoint_every=None))
    changed = []
    for line in folder.rank_events(0).read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "span" and event["phase"] == "optimize":
            event["end_ns"] += {1: 9_000_000, 6: 5_000_000}.get(event["step"], 0)
        changed.append(json.dumps(event))
    folder.rank_events(0).write_text("\n".join(changed) + "\n")
    (slowest,) = [window for window in windows(read_history(folder)) if window.title == "Slowest step"]
    assert (slowest.first_step, slowest.last_step) == (6, 6)


@pytest.mark.parametrize(
    ("durations", "aside", "expected"),
    [
        ([7.0], [], (1, 1)),
        ([7.0, 8.0], [], (1, 2)),
        ([1.0, 5.0, 1.0, 9.0, 1.0], [], (3, 4)),  # sums 6, 10, 10 after the first step
        ([50.0, 9.0, 1.0, 2.0, 4.0, 8.0], [], (4, 5)),  # 10, 3, 6, 12: the lower middle one
        ([50.0, 9.0, 1.0, 2.0, 4.0, 8.0], [4], (2, 3)),
        ([50.0, 1.0, 3.0], [2], (2, 3)),  # none without: all count
    ],
)
def test_typical_steps_have_the_median_of_two(
    durations: list[float], aside: list[int], expected: tuple[int, int]
) -> None:
    steps = np.arange(1, len(durations) + 1)
    assert timeline._typical(steps, np.array(durations), np.array(aside)) == expected


@pytest.mark.parametrize("limit", [1, 20, 100, 1500])
def test_window_with_many_spans_shows_fewer_steps_then_fewer_ranks(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = read_history(make_run(tmp_path / "r", Synthetic(segments=[(4, 0, 10)], eval_every=None)))
    monkeypatch.setattr(timeline, "_MAX_SPANS", limit)
    first = windows(history)[0]
    per_step = len(PHASES) - 2  # of each rank, without evaluation and checkpoint
    assert first.last_step - first.first_step == (1 if 2 * 4 * per_step <= limit else 0)
    assert len(first.lanes) == (4 if 4 * per_step <= limit else max(1, limit // per_step))


@pytest.mark.parametrize("width_ms", [0.4, 1.0, 3.99, 4.0, 7.9, 8.0, 19.9, 20.0, 37.5, 80.0, 123456.7])
def test_ticks_are_four_to_ten_round_positions(width_ms: float) -> None:
    ticks = timeline._ticks(round(width_ms * 1e6))
    values = [float(tick["label"]) for tick in ticks]
    gap = values[1]
    assert f"{gap:e}"[0] in "125"
    assert gap == float(f"{gap:.0e}")
    assert values == pytest.approx([gap * number for number in range(len(values))])
    assert 4 <= width_ms / gap <= 10.000001
    assert width_ms - gap < values[-1] <= width_ms * 1.000001
    assert [tick["left"] for tick in ticks] == pytest.approx([100 * value / width_ms for value in values], abs=0.002)


def test_phase_fractions_cover_each_ranks_total_time(tmp_path: Path) -> None:
    fractions = phase_fractions(read_history(make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 40), (4, 30, 60)]))))
    assert [share.rank for share in fractions] == [0, 1, 2, 3]
    for share in fractions:
        assert sum(share.phase_ns.values()) == share.wall_ns
        assert 0.1 < share.collective_fraction < share.fraction("reduce") < 0.3
    # Each step begins 40 ms after the one before, and evaluation ends the last of a segment.
    assert fractions[0].wall_ns == pytest.approx(60 * 40e6, rel=0.02)
    assert fractions[3].wall_ns == pytest.approx(30 * 40e6, rel=0.02)


def test_fractions_of_a_rank_without_any_time_are_zero() -> None:
    rank = RankFractions(0, wall_ns=0, phase_ns={"reduce": 0}, collective_ns=0, collective_bytes=0, num_steps=0)
    assert (rank.fraction("reduce"), rank.collective_fraction) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_typical_steps_have_no_evaluation_or_checkpoint_if_possible(tmp_path: Path, seed: int) -> None:
    kind = Synthetic(segments=[(1, 0, 30)], eval_every=3, checkpoint_every=None, seed=seed)
    assert "evaluate" not in windows(read_history(make_run(tmp_path / "r", kind)))[0].phases


def test_windows_show_each_rank_inside_the_window(tmp_path: Path) -> None:
    found = windows(read_history(make_run(tmp_path / "r")))
    assert [window.title for window in found] == [
        "Typical steps",
        "First steps",
        "Slowest step",
        "Evaluation, checkpoint",
    ]
    typical, *_, aside = found
    assert typical.last_step == typical.first_step + 1
    assert "evaluate" not in typical.phases
    assert {"evaluate", "checkpoint"} <= set(aside.phases)
    for window in found:
        assert [lane["rank"] for lane in window.lanes] == [0, 1, 2, 3]
        for lane in window.lanes:
            for box in [*lane["spans"], *lane["collectives"]]:
                assert -0.001 <= box["left"] <= box["left"] + box["width"] <= 100.002
