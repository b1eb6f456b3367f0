"""The moving picture of a run: every width is a measured time, on one scale, in the lane of its rank."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from frog.core.runs.attempts import Attempt, Worker
from frog.core.runs.event_schema import SpanEvent, StartEvent
from frog.core.runs.launcher_schema import ExitEvent
from tools.site.moving_run import LANE, LEFT, TOP, draw, worlds_of

ROOT = Path(__file__).parents[3]
SECOND = 1_000_000_000


def worker(rank: int, began_at: int, unix_s: int, steps: dict[int, list[tuple[str, int]]]) -> Worker:
    """Return a process whose phases follow each other from its start on. steps: phases with their seconds."""
    events: list[StartEvent | SpanEvent] = [
        StartEvent(
            step=began_at, rank=rank, world_size=2, local_rank=rank, node_rank=0, host="h", pid=1, device="cpu",
            threads=1, unix_ns=unix_s * SECOND, mono_ns=7 * SECOND, mesh={}, place={}, passed_over=[],
        )
    ]  # fmt: skip
    at_ns = 7 * SECOND
    for step, phases in steps.items():
        for phase, seconds in phases:
            end_ns = at_ns + seconds * SECOND
            events.append(SpanEvent(step=step, phase=phase, micro=0, start_ns=at_ns, end_ns=end_ns))  # type: ignore[arg-type]
            at_ns = end_ns
    return Worker(list(events), rank)


def exit_of(rank: int, code: int, unix_s: int) -> ExitEvent:
    return ExitEvent(
        unix_ns=unix_s * SECOND, attempt=0, rank=rank, node=0, node_rank=0, pid=1, code=code, error=None, traceback=None
    )


STEP = [("forward", 2), ("backward", 4), ("reduce", 1), ("optimize", 1)]
FIRST = Attempt(
    number=0,
    launch=None,
    workers={rank: worker(rank, 0, 100, {0: [("evaluate", 5)], 1: STEP, 2: STEP}) for rank in (0, 1)},
    exits=[exit_of(1, -9, 124), exit_of(0, 1, 125)],
)
SECOND_ATTEMPT = Attempt(
    number=1, launch=None, workers={rank: worker(rank, 1, 130, {2: STEP, 3: STEP}) for rank in (0, 1)}
)


def bars(picture: str) -> list[tuple[int, str, float, float]]:
    """Return rank, phase, left edge and width of every phase that is drawn."""
    found = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="(\d+)" width="([\d.]+)" height="26"><title>', picture)
    return [((int(y) - TOP) // LANE, phase, float(x), float(width)) for phase, x, y, width in found]


def test_widths_are_times_on_one_scale_in_both_worlds() -> None:
    drawn = bars(draw(worlds_of([FIRST, SECOND_ATTEMPT])))
    assert [(rank, phase) for rank, phase, _, _ in drawn] == [
        (rank, phase) for _ in range(2) for rank in (0, 1) for _ in range(2) for phase, _ in STEP
    ]
    second = drawn[1][3] / 4
    for (_, _, _, width), (_, seconds) in zip(drawn, STEP * 8, strict=True):
        assert width == pytest.approx(seconds * second, abs=0.1)
    assert drawn[0][2] == pytest.approx(LEFT, abs=0.1)


def test_picture_says_who_was_killed_when_the_others_trained_again_and_from_where() -> None:
    page = draw(worlds_of([FIRST, SECOND_ATTEMPT]))
    words = [text.text for text in ElementTree.fromstring(page).iter("{http://www.w3.org/2000/svg}text")]
    assert "rank 1 is killed" in words
    assert "6.0 s later all train again, from the checkpoint of step 1" in words


def test_run_without_a_killed_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="no rank of this run was killed"):
        draw(worlds_of([SECOND_ATTEMPT]))


def test_committed_picture_moves_only_where_motion_is_welcome() -> None:
    page = (ROOT / "docs/pictures/moving-run.svg").read_text()
    ElementTree.fromstring(page)
    before, _, inside = page.partition("@media(prefers-reduced-motion:no-preference)")
    assert "animation:" not in before
    assert "animation:uncover" in inside
