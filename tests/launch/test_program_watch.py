"""The watchdog's decisions about worlds of other people's programs, with times passed in."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import beat

from frog.core.runs.event_schema import Beat
from frog.core.runs.observed import CodeLine, GroupCounts, Status
from frog.launch.watchdog import (
    Finding,
    Hang,
    Kind,
    ProgramWatch,
    Role,
    Snapshot,
    WatchLimits,
    take_snapshot,
    take_snapshots,
)

LIMITS = WatchLimits(deadline_s=10, idle_s=40, compute_s=200)
LOOK_S = 0.5
WAIT = CodeLine(file="/me/train.py", line=6, function="step")
WORK = CodeLine(file="/me/train.py", line=8, function="evaluate")

World = Callable[[float], dict[int, Snapshot]]
"""What is seen of all ranks at a time."""


def waits(now: float, cores: float = 0.0, completed: int = 5, **fields: object) -> Snapshot:
    return Snapshot(completed=completed, pending=True, cpu_s=cores * now, line=WAIT, inside=WAIT, **fields)  # type: ignore[arg-type]


def works(now: float, cores: float = 1.0, completed: int = 5, **fields: object) -> Snapshot:
    return Snapshot(completed=completed, pending=False, cpu_s=cores * now, line=WORK, inside=WORK, **fields)  # type: ignore[arg-type]


def watch(world: World, until_s: float, start_s: float = 0.0, look_s: float = LOOK_S) -> list[tuple[float, Finding]]:
    """Return the findings with their times, up to the first that ends the world."""
    watchdog, found = ProgramWatch(LIMITS), []
    for number in range(int(until_s / look_s) + 1):
        now = number * look_s
        finding = watchdog.look(world(now), start_s + now)
        if finding is not None:
            found.append((now, finding))
            if finding.ends:
                break
    return found


@pytest.mark.parametrize("cores", [0.0, 1.0], ids=["sleeping", "spinning"])
def test_world_in_which_all_ranks_wait_is_a_hang(cores: float) -> None:
    ((at, finding),) = watch(lambda now: {0: waits(now, cores), 1: waits(now, cores)}, 100)
    assert (finding.kind, finding.ends, finding.roles) == (Kind.HANG, True, {0: Role.WAITS, 1: Role.WAITS})
    assert at == LIMITS.deadline_s


def test_rank_that_sleeps_outside_a_collective_is_a_hang_later() -> None:
    ((at, finding),) = watch(lambda now: {0: waits(now), 1: works(now, cores=0)}, 100)
    assert (at, finding.kind, finding.roles) == (LIMITS.idle_s, Kind.HANG, {0: Role.WAITS, 1: Role.IDLE})


def test_rank_that_computes_is_reported_once_and_ended_much_later() -> None:
    (first_at, first), (last_at, last) = watch(lambda now: {0: waits(now), 1: works(now)}, 300)
    assert (first_at, first.kind, first.ends) == (LIMITS.deadline_s, Kind.COMPUTING, False)
    assert (last_at, last.kind, last.ends) == (LIMITS.compute_s, Kind.COMPUTING, True)
    assert first.roles == {0: Role.WAITS, 1: Role.COMPUTES}


def test_slow_rank_is_reported_again_after_progress() -> None:
    found = watch(lambda now: {r: f(now, completed=int(now // 50)) for r, f in enumerate((waits, works))}, 120)
    assert [at for at, _ in found] == [10, 60, 110]


def test_rank_that_loads_with_child_processes_computes() -> None:
    found = watch(lambda now: {0: waits(now), 1: works(now, cores=0, children_cpu_s=now)}, 100)
    assert [(finding.kind, finding.ends) for _, finding in found] == [(Kind.COMPUTING, False)]


@pytest.mark.parametrize(("queued", "kind"), [(0.5, Kind.COMPUTING), (0.2, Kind.HANG)])
def test_rank_that_is_ready_but_gets_no_core_computes(queued: float, kind: Kind) -> None:
    found = watch(lambda now: {0: waits(now), 1: works(now, cores=0.05, queued_s=queued * now)}, 200)
    assert found[0][1].kind is kind


@pytest.mark.parametrize("look_s", [0.5, 2.0, 4.0])
@pytest.mark.parametrize(("bytes_per_s", "hangs"), [(70_000, False), (60_000, True)])
def test_collective_over_a_slow_link_is_not_a_hang(bytes_per_s: int, hangs: bool, look_s: float) -> None:
    moving = lambda now: waits(now, moved_bytes=int(bytes_per_s * now))  # noqa: E731
    assert bool(watch(lambda now: {0: moving(now), 1: waits(now)}, 300, look_s=look_s)) == hangs


@pytest.mark.parametrize("look_s", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(("cores", "queued", "computes"), [
    *[(0.11, 0.0, True), (0.09, 0.0, False), (0.05, 0.46, True), (0.05, 0.44, False)]
])  # fmt: skip
def test_share_of_a_core_that_counts_does_not_depend_on_the_looks(
    cores: float, queued: float, computes: bool, look_s: float
) -> None:
    found = watch(lambda now: {0: waits(now), 1: works(now, cores=cores, queued_s=queued * now)}, 60, look_s=look_s)
    assert (found[0][1].kind is Kind.COMPUTING) == computes


def polls(now: float, **fields: object) -> Snapshot:
    """A rank that looks for a file in a function of its own, and sleeps at two of three looks of the watchdog."""
    asleep = int(2 * now) % 3 > 0
    line = WORK if asleep else CodeLine(file="/me/train.py", line=3, function="is_there")
    seen: dict[str, Any] = {"main_cpu_s": 0.4 * now, "queued_s": 0.3 * now, "asleep": asleep, **fields}
    return replace(works(now, cores=0.4), line=line, inside=line, **seen)


def test_rank_that_polls_is_a_hang_like_one_that_sleeps() -> None:
    ((at, finding),) = watch(lambda now: {0: waits(now), 1: polls(now)}, 100)
    assert (finding.kind, finding.ends, finding.roles) == (Kind.HANG, True, {0: Role.WAITS, 1: Role.IDLE})
    assert LIMITS.idle_s <= at < LIMITS.idle_s + 10


@pytest.mark.parametrize(
    "fields",
    [{"main_cpu_s": 0.2}, {"children_cpu_s": 1.0}, {"moved_bytes": 1 << 20}, {"asleep": False}],
    ids=["a thread", "a child", "moves data", "awake"],
)
def test_rank_that_polls_for_its_own_work_computes(fields: dict[str, float]) -> None:
    """fields: what it has more, per second; its whole process uses 0.4 cores."""
    own = lambda now: {name: value if name == "asleep" else type(value)(value * now) for name, value in fields.items()}  # noqa: E731
    found = watch(lambda now: {0: waits(now), 1: polls(now, **own(now))}, 100)
    assert [(finding.kind, finding.ends) for _, finding in found] == [(Kind.COMPUTING, False)]


def test_rank_that_computes_after_it_polled_is_busy_again() -> None:
    after = lambda now: polls(now) if now < 35 else works(now, main_cpu_s=now)  # noqa: E731
    found = watch(lambda now: {0: waits(now, completed=5), 1: after(now)}, 180)
    assert not any(finding.ends for _, finding in found)


def test_rank_that_has_ended_is_named_as_left() -> None:
    ((at, finding),) = watch(lambda now: {0: waits(now), 1: works(now, cores=0, ended=True)}, 100)
    assert (at, finding.kind, finding.roles) == (LIMITS.deadline_s, Kind.LEFT, {0: Role.WAITS, 1: Role.ENDED})


def test_rank_that_failed_but_does_not_exit_is_named_as_failed() -> None:
    ((_, finding),) = watch(lambda now: {0: waits(now), 1: works(now, ended=True, failed=True)}, 100)
    assert (finding.kind, finding.roles[1]) == (Kind.LEFT, Role.FAILED)


def test_stopped_rank_counts_as_waiting() -> None:
    ((at, finding),) = watch(lambda now: {0: waits(now), 1: works(0, stopped=now > 3)}, 100)
    assert (finding.kind, finding.roles[1]) == (Kind.HANG, Role.STOPPED)
    assert at == LIMITS.deadline_s + 3.5


def test_last_rank_may_upload_for_long_after_the_others_have_ended() -> None:
    world = lambda now: {0: works(now, cores=0), 1: works(now, cores=0, ended=True)}  # noqa: E731
    assert watch(world, LIMITS.compute_s - 1) == []


def test_evaluation_between_collectives_is_not_a_hang() -> None:
    assert watch(lambda now: {0: works(now), 1: works(now)}, 500) == []


def test_program_without_collectives_is_never_a_hang() -> None:
    assert watch(lambda now: {0: works(now, cores=0, completed=0)}, 1000) == []


def test_rank_that_polls_its_pending_collective_waits() -> None:
    lines = (WAIT, replace_line(WAIT, 7))
    polls = lambda now: replace(waits(now), line=lines[int(2 * now) % 2])  # noqa: E731
    ((at, finding),) = watch(lambda now: {0: polls(now), 1: waits(now)}, 100)
    assert (at, finding.kind) == (LIMITS.deadline_s, Kind.HANG)


def replace_line(line: CodeLine, number: int) -> CodeLine:
    return CodeLine(file=line.file, line=number, function=line.function)


def test_time_without_a_look_does_not_count() -> None:
    watchdog = ProgramWatch(LIMITS)
    assert watchdog.look({0: waits(0)}, 0) is None
    assert watchdog.look({0: waits(0)}, 1000) is None
    assert watchdog.look({0: waits(0)}, 1004) is None


@pytest.mark.parametrize(
    ("other", "kind"), [(waits, Kind.HANG), (works, Kind.COMPUTING), (lambda now: waits(now, ended=True), Kind.HANG)]
)
def test_wait_of_a_rank_is_known_before_the_deadline(other: Callable[[float], Snapshot], kind: Kind) -> None:
    watchdog = ProgramWatch(LIMITS)
    for now in range(5):
        assert watchdog.look({0: waits(now), 1: other(now)}, now) is None
    found = watchdog.wait(4, 4)
    assert found is not None
    assert (found.kind, found.still_s, found.ends, found.roles[0]) == (kind, 4, False, Role.WAITS)
    assert watchdog.wait(4, 5) is None


@pytest.mark.parametrize(("cores", "completed", "is_known"), [(0, 5, True), (1, 5, False), (0, 0, False)])
def test_world_that_does_nothing_outside_of_collectives_is_known_too(
    cores: int, completed: int, is_known: bool
) -> None:
    watchdog = ProgramWatch(LIMITS)
    for now in range(6):
        ranks = {rank: works(now, cores=cores if rank else 0, completed=completed) for rank in (0, 1)}
        assert watchdog.look(ranks, now) is None
    found = watchdog.wait(5, 4)
    assert (found is not None) == is_known
    assert found is None or (found.kind, found.roles) == (Kind.HANG, {0: Role.IDLE, 1: Role.IDLE})


def test_no_rank_waits_in_a_world_that_computes() -> None:
    watchdog = ProgramWatch(LIMITS)
    for now in range(5):
        watchdog.look({0: works(now), 1: works(now)}, now)
    assert watchdog.wait(4, 4) is None


def test_ended_world_is_not_a_hang() -> None:
    assert watch(lambda now: {0: works(0, ended=True), 1: works(0, ended=True)}, 100) == []


def test_default_limits_are_a_minute_five_minutes_and_half_an_hour() -> None:
    assert WatchLimits() == WatchLimits(deadline_s=60, idle_s=300, compute_s=1800)


GLOO = CodeLine(file="/site-packages/torch/distributed/distributed_c10d.py", line=9, function="recv")


@pytest.mark.parametrize(
    ("changes", "pending"),
    [
        ({}, False),
        ({"in_message": True}, True),
        ({"groups": [GroupCounts(group="0", enqueued=5, completed=4)]}, True),
        ({"groups": [GroupCounts(group="0", enqueued=4, completed=4)]}, False),
        ({"inside": GLOO}, True),
        ({"inside": WAIT}, False),
    ],
)
def test_rank_waits_in_a_collective_a_message_or_in_torch(changes: dict[str, Any], pending: bool) -> None:
    snapshot = take_snapshot(status(**changes), with_children=False)
    assert (snapshot.pending, snapshot.ended, snapshot.failed) == (pending, True, False)
    assert snapshot.cpu_s == 1.5


@pytest.mark.parametrize(
    ("text", "asleep"), [("time.sleep(0.01)", True), ("    sleep(wait_s)", True), ("asleep = sleeper.number(3)", False)]
)
def test_rank_in_a_line_that_sleeps_is_asleep(text: str, asleep: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import time\n{text}\n")
    place = CodeLine(file=str(tmp_path / "train.py"), line=2, function="main")
    assert take_snapshot(status(inside=place), with_children=False).asleep == asleep


def test_snapshot_counts_the_collectives_of_all_groups() -> None:
    groups = [GroupCounts(group=name, enqueued=9, completed=completed) for name, completed in (("0", 4), ("1", 3))]
    assert take_snapshot(status(groups=groups), with_children=False).completed == 7
    assert take_snapshot(status(state="failed"), with_children=False).failed


def test_snapshot_of_a_living_process_has_its_times_and_children() -> None:
    here, gone = (status(state="running", pid=pid) for pid in (os.getpid(), 2**22 + 5))
    alone, family = (take_snapshot(here, with_children=children) for children in (False, True))
    assert (alone.ended, alone.stopped, alone.children_cpu_s) == (False, False, None)
    assert family.children_cpu_s is not None
    assert alone.cpu_s == pytest.approx(sum(os.times()[:2]), abs=1)
    assert take_snapshot(gone, with_children=False).ended
    assert take_snapshots({3: here}, with_children=False).keys() == {3}


def status(**changes: Any) -> Status:
    times = dict.fromkeys(("local_rank", "node_rank", "attempt", "started_unix_ns", "unix_ns", "mono_ns"), 0)
    content = {**times, "pid": 7, "rank": 0, "world_size": 2, "host": "a", "state": "ended", "cpu_s": 1.5}
    return Status(**{**content, "rss_bytes": 1, **changes})


@pytest.mark.parametrize(
    ("kind", "phase", "words"),
    [
        ("silent", "reduce", "rank 2 (pid 9) sent no heartbeat for 61 s, after step 3, reduce"),
        ("silent", None, "rank 2 (pid 9) sent no heartbeat for 61 s, after step 3"),
        ("stuck", "reduce", "rank 2 (pid 9) has waited 61 s in all_reduce (step 3, reduce)"),
    ],
)
def test_hang_of_a_rank_has_its_place(kind: str, phase: str | None, words: str) -> None:
    waits_in = {"seq": 0, "op": "all_reduce", "axis": "dp", "payload_bytes": 4, "start_ns": 0}
    heartbeat = msgspec.convert(beat(step=3, phase=phase, open=[waits_in]), Beat)
    assert str(Hang(2, 9, kind, 61.4, heartbeat)) == words


PERIODS = st.floats(min_value=0.5, max_value=LIMITS.deadline_s - LOOK_S)
RANKS = st.integers(1, 5)
STARTS = st.integers(0, 10**6)
"""Starts from which all times of looks are exact: 6.4 + 10 - 6.4 < 10."""


@given(RANKS, PERIODS, st.floats(0, 2), st.data())
@settings(max_examples=60, deadline=None)
def test_world_that_finishes_collectives_is_healthy(
    ranks: int, period_s: float, cores: float, data: st.DataObject
) -> None:
    """Whatever the ranks do in between, and whichever rank is seen to finish."""
    kinds = data.draw(st.lists(st.sampled_from([waits, works]), min_size=ranks, max_size=ranks))
    finishes = data.draw(st.integers(0, ranks - 1))

    def world(now: float) -> dict[int, Snapshot]:
        done = {rank: int(now / period_s) if rank == finishes else 0 for rank in range(ranks)}
        return {rank: kind(now, cores, completed=done[rank]) for rank, kind in enumerate(kinds)}

    assert watch(world, 60) == []


@given(RANKS, st.floats(0.2, 3), st.integers(0, 4), STARTS)
@settings(max_examples=60, deadline=None)
def test_computing_rank_is_never_ended_early(waiting: int, cores: float, place: int, start_s: float) -> None:
    def world(now: float) -> dict[int, Snapshot]:
        ranks = [waits(now) for _ in range(waiting)]
        ranks.insert(min(place, waiting), works(now, cores))
        return dict(enumerate(ranks))

    found = watch(world, LIMITS.compute_s - 1, start_s)
    assert [(at, finding.ends) for at, finding in found] == [(LIMITS.deadline_s, False)]


@given(st.integers(0, 100), RANKS, st.floats(0, 2), STARTS)
@settings(max_examples=60, deadline=None)
def test_hang_is_found_at_the_deadline_after_the_last_progress(
    steps: int, ranks: int, cores: float, start_s: float
) -> None:
    last_s = steps * LOOK_S

    def world(now: float) -> dict[int, Snapshot]:
        return {rank: waits(now, cores, completed=int(min(now, last_s) / LOOK_S)) for rank in range(ranks)}

    ((at, finding),) = watch(world, last_s + 30, start_s)
    assert finding.ends
    assert LIMITS.deadline_s <= at - last_s <= LIMITS.deadline_s + 2 * LOOK_S
    assert finding.still_s == pytest.approx(at - last_s)
