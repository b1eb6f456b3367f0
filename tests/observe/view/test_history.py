"""The valid part of a run that was killed and resumed, and of a truncated file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import START_MONO_NS, START_UNIX_NS, Synthetic, make_run

from frog.core.runs.history import read_history
from frog.observe.view.timeline import RankFractions, phase_fractions, windows


def test_repeated_steps_of_dead_world_are_dropped_on_every_rank(tmp_path: Path) -> None:
    history = read_history(make_run(tmp_path / "r", Synthetic(segments=[(4, 0, 75), (2, 50, 120)])))
    assert [rank.steps[-1] for rank in history.ranks.values()] == [120, 120, 50, 50]
    for rank in (0, 1):
        assert history.ranks[rank].steps.tolist() == list(range(1, 121))
        assert history.ranks[rank].segment.tolist() == [0] * 50 + [1] * 70
        # A span of a step that does not count would lengthen the phases.
        assert set(history.ranks[rank].spans.step[history.ranks[rank].spans.segment == 0]) == set(range(1, 51))
    assert [(s.from_step, s.until_step, s.world_size, s.num_retaken) for s in history.segments] == [
        (0, 50, 4, 0),
        (50, None, 2, 25),
    ]


def test_resume_from_older_checkpoint_drops_later_steps(tmp_path: Path) -> None:
    """The third start resumes before the second one's end: later steps of the second must not count."""
    history = read_history(make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 40), (2, 30, 60), (1, 20, 50)])))
    main = history.main
    assert main is not None
    assert main.steps.tolist() == list(range(1, 51))
    assert main.segment.tolist() == [0] * 20 + [2] * 30
    assert history.ranks[1].steps[-1] == 20


def test_torn_last_line_is_counted_and_skipped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 10)]))
    path = folder.rank_events(1)
    whole = path.read_text().splitlines()
    last_step = max(index for index, line in enumerate(whole) if json.loads(line)["event"] == "step")
    path.write_text("\n".join(whole[:last_step]) + "\n" + whole[last_step][:40])
    history = read_history(folder)
    assert len(history.run.problems) == 1
    assert "1 damaged or torn line" in history.run.problems[0]
    assert history.ranks[1].steps[-1] == 9
    assert history.ranks[0].steps[-1] == 10


def test_step_missing_on_rank_0_is_taken_from_another_rank(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(3, 0, 10), (2, 10, 20)]))
    path = folder.rank_events(0)
    lines = [
        line for line in path.read_text().splitlines() if (e := json.loads(line))["event"] != "step" or e["step"] != 10
    ]
    path.write_text("\n".join(lines) + "\n")
    history = read_history(folder)
    assert history.main is not None
    assert history.main.steps.tolist() == list(range(1, 21))
    assert history.main.segment.tolist() == [0] * 10 + [1] * 10
    assert history.main.scalars["loss_mean"][9] == history.ranks[1].scalars["loss_mean"][9]
    assert 10 not in history.ranks[0].steps


def test_non_numeric_value_is_nan(tmp_path: Path) -> None:
    history = read_history(make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 3)])))
    assert np.isnan(history.ranks[0].scalars["mfu"]).all()


@pytest.mark.parametrize(("shift_ns", "expected_ns"), [(4_000_000, 0), (7_000_000_000, 7_000_000_000)])
def test_ranks_of_one_machine_share_a_clock(tmp_path: Path, shift_ns: int, expected_ns: int) -> None:
    """Clocks milliseconds apart are of one machine with a slow rank; seconds apart, of two machines."""
    folder = make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 3)]))
    path = folder.rank_events(1)
    start, *rest = path.read_text().splitlines()
    changed = json.loads(start)
    changed["unix_ns"] = START_UNIX_NS + shift_ns
    path.write_text("\n".join([json.dumps(changed), *rest]) + "\n")
    offset_ns = read_history(folder).clock_offset_ns(1, 0)
    assert offset_ns == START_UNIX_NS - START_MONO_NS + expected_ns


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
