"""The valid part of a run that was killed and resumed, and of a truncated file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_files import event
from synthetic_run import START_MONO_NS, START_UNIX_NS, Synthetic, make_run

from frog.core.runs.folder import RunFolder
from frog.core.runs.history import History, read_history
from frog.core.runs.run import RecordedRun
from frog.core.runs.vocabulary import PHASES


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


@pytest.mark.parametrize(
    ("num_ranks", "most", "drawn"),
    [
        (3, 3, [0, 1, 2]),
        (4, 3, [0, 2, 3]),
        (9, 3, [0, 4, 8]),
        (16, 16, list(range(16))),
        (31, 16, list(range(0, 31, 2))),
        (100, 2, [0, 99]),
    ],
)
def test_ranks_to_draw_are_all_or_evenly_spaced(num_ranks: int, most: int, drawn: list[int]) -> None:
    history = History(RecordedRun(RunFolder(Path()), None, None, [], []), [], dict.fromkeys(range(num_ranks)))  # type: ignore[arg-type]
    assert history.ranks_to_draw(most) == drawn


def test_at_most_16_ranks_are_drawn_by_default() -> None:
    history = History(RecordedRun(RunFolder(Path()), None, None, [], []), [], dict.fromkeys(range(17)))  # type: ignore[arg-type]
    assert len(history.ranks_to_draw()) == 16


def test_run_without_events_has_no_main_rank(tmp_path: Path) -> None:
    history = read_history(RunFolder(tmp_path))
    assert (history.main, history.last_segment, history.segments) == (None, None, [])


def write_steps(folder: RunFolder, rank: int, steps: list[dict[str, Any]], **start: Any) -> None:
    lines = [event("start", rank=rank, **start), *(event("step", **{"step": 1, **step}) for step in steps)]
    folder.events.mkdir(parents=True, exist_ok=True)
    folder.rank_events(rank).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("steps", "means"),
    [
        # each rank: (step, loss, tokens)
        ([[(1, 1.0, 10), (2, 2.0, 10)], [(1, 4.0, 30), (2, 4.0, 10)]], [3.25, 3.0]),
        ([[(1, 1.0, 0)], [(1, 4.0, 30)]], [2.5]),  # not all say their tokens
        ([[(1, 1.0, 1), (2, 2.0, 1)], [(2, 4.0, 1)]], [None, 3.0]),  # a step that one rank did not record
    ],
)
def test_mean_loss_that_no_rank_reports_is_that_of_the_ranks(
    tmp_path: Path, steps: list[list[tuple[int, float, int]]], means: list[float | None]
) -> None:
    folder = RunFolder(tmp_path)
    for rank, own in enumerate(steps):
        write_steps(
            folder,
            rank,
            [{"step": step, "loss": loss, "loss_mean": None, "tokens": tokens} for step, loss, tokens in own],
            world_size=2,
        )
    main = read_history(folder).ranks[0]
    assert [None if np.isnan(mean) else mean for mean in main.scalars["loss_mean"].tolist()] == means


def test_mean_loss_that_a_rank_reports_is_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_steps(folder, 0, [{"loss": 1.0, "loss_mean": 9.0}], world_size=2)
    write_steps(folder, 1, [{"loss": 3.0, "loss_mean": None}], world_size=2)
    assert read_history(folder).ranks[0].scalars["loss_mean"].tolist() == [9.0]


def test_steps_have_all_numbers_and_only_fp16_skips(tmp_path: Path) -> None:
    numbers = {"loss": 1.5, "loss_mean": 1.25, "grad_norm_local": 0.5, "grad_norm": 0.25, "learning_rate": 0.125}
    numbers |= {"tokens": 64, "tokens_per_s": 10.0, "mfu": 0.4, "memory_bytes": 7}
    folder = RunFolder(tmp_path)
    steps = [
        {**numbers, "step": 1, "loss_scale": 4.0, "skipped": True, "sample_ids": [4, 5], "end_ns": 9},
        {**numbers, "step": 2, "loss_scale": None, "skipped": True, "sample_ids": [6], "end_ns": 19},
        {**numbers, "step": 2, "loss_scale": 2.0, "skipped": False, "sample_ids": [7], "end_ns": 29},
        {**numbers, "step": 3, "loss_scale": None, "skipped": False, "sample_ids": [8], "end_ns": 39},
    ]
    write_steps(folder, 0, steps)
    rank = read_history(folder).ranks[0]
    assert {name: rank.scalars[name].tolist() for name in numbers} == {
        name: [value] * 3 for name, value in numbers.items()
    }
    assert list(rank.scalars) == [*numbers, "loss_scale", "skipped"]
    assert rank.scalars["skipped"].tolist()[:2] == [1.0, 0.0]
    assert np.isnan([rank.scalars["skipped"][2], rank.scalars["loss_scale"][2]]).all()
    assert (rank.steps.tolist(), rank.end_ns.tolist()) == ([1, 2, 3], [9, 29, 39])  # of two lines the later one counts
    assert rank.sample_ids == [[4, 5], [7], [8]]


def test_spans_collectives_and_rare_events_are_in_their_columns(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    collective = event(
        "collective", seq=0, op="all_gather", axis="tp", payload_bytes=8, start_ns=3, end_ns=9, wait_ns=2
    )
    lines = [
        event("start", unix_ns=1000, mono_ns=100),
        event("span", phase="forward", micro=1, start_ns=2, end_ns=4),
        collective,
        {**collective, "seq": 1, "op": "all_reduce", "axis": "dp", "start_ns": 10, "end_ns": 12},
        event("step", step=1, end_ns=20),
        event("commit", step=1, payload_bytes=5),
        event("commit", step=1, payload_bytes=6),
    ]
    folder.events.mkdir()
    folder.rank_events(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = read_history(folder)
    rank = history.ranks[0]
    assert (rank.ops, rank.axes) == (["all_gather", "all_reduce"], ["tp", "dp"])
    spans = rank.spans
    assert [column.tolist() for column in (spans.segment, spans.step, spans.micro, spans.start_ns, spans.end_ns)] == [
        *([0], [1], [1], [2], [4])
    ]
    assert PHASES[spans.phase[0]] == "forward"
    own = rank.collectives
    columns = (own.segment, own.step, own.phase, own.micro, own.start_ns, own.end_ns, own.axis, own.wait_ns)
    assert [column.tolist() for column in columns] == [
        *([0, 0], [1, 1], [0, 1], [8, 8], [3, 10], [9, 12], [0, 1], [2, 2])
    ]
    assert {step: commit.payload_bytes for step, commit in rank.commits.items()} == {1: 6}
    assert (history.last_segment, history.clock_offset_ns(0, 0), history.clock_offset_ns(0, 7)) == (0, 900, 0)
    assert (history.segments[0].hosts, history.segments[0].device) == (["pond"], "cpu")


def test_spans_and_collectives_of_repeated_steps_do_not_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.events.mkdir()

    def step(number: int, at: int) -> list[dict[str, Any]]:
        collective = event("collective", step=number, seq=number, op=f"op{number}", start_ns=at, end_ns=at + 1)
        return [
            event("span", step=number, start_ns=at, end_ns=at + 2),
            collective,
            event("step", step=number, end_ns=at),
        ]

    first = [event("start"), *(line for number in range(1, 5) for line in step(number, 10 * number))]
    again = [event("start", step=2, pid=2), *(line for number in (3, 4) for line in step(number, 100 * number))]
    commits = [event("commit", step=number, payload_bytes=number) for number in (1, 4)]
    folder.rank_events(0).write_text("".join(json.dumps(line) + "\n" for line in [*first, *commits, *again]))
    rank = read_history(folder).ranks[0]
    assert rank.spans.start_ns.tolist() == [10, 20, 300, 400]
    assert rank.collectives.start_ns.tolist() == [10, 20, 300, 400]
    assert rank.end_ns.tolist() == [10, 20, 300, 400]
    assert list(rank.commits) == [1]
