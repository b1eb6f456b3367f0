"""Attempts of a run: which launcher event and which process belongs to which start of all ranks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert
from run_files import beat, event

from frog.core.runs.attempts import Attempt, Worker, cut, last_workers, sort_attempts
from frog.core.runs.event_schema import (
    Beat,
    CollectiveEvent,
    EndEvent,
    SpanEvent,
    StartEvent,
    StepEvent,
)
from frog.core.runs.launcher_schema import LauncherEndEvent, LaunchEvent, NodeEvent, WorldEvent

S = 1_000_000_000


def launch(second: int) -> LaunchEvent:
    return LaunchEvent(
        unix_ns=second * S, pid=1, nodes=[], ranks_per_node=2, program=["train"], restarts=1, network=None
    )


def world(second: int, attempt: int, *pids: int) -> WorldEvent:
    return WorldEvent(
        unix_ns=second * S, attempt=attempt, node=0, node_rank=0, ranks=[*range(len(pids))], world_size=2,
        master_addr="127.0.0.1", master_port=1, pids=list(pids),
    )  # fmt: skip


def node(second: int) -> NodeEvent:
    return NodeEvent(unix_ns=second * S, node=0, host="pond", code=0)


def end(second: int) -> LauncherEndEvent:
    return LauncherEndEvent(unix_ns=second * S, code=0, network=None)


def start(second: int, pid: int, step: int = 0, size: int = 2) -> StartEvent:
    return convert(event("start", unix_ns=second * S, pid=pid, step=step, world_size=size), StartEvent)


def worker(rank: int, *events: Any) -> Worker:
    return Worker(list(events), rank)


def shown(attempts: list[Attempt]) -> list[tuple[int | None, int | None, dict[int, int | None]]]:
    """Return each attempt's number, when it began in seconds, and the process of each rank."""
    return [
        (
            attempt.number,
            None if attempt.began_ns is None else attempt.began_ns // S,
            {rank: own.start.pid if own.start else None for rank, own in sorted(attempt.workers.items())},
        )
        for attempt in attempts
    ]


def test_events_of_the_launcher_belong_to_the_attempt_that_they_name() -> None:
    events = [
        *(launch(10), world(11, 0, 1, 2), world(12, 1, 3, 4), world(13, 0, 5), node(14), world(15, 3, 6), end(16)),
        *(launch(20), world(21, 0, 7), world(22, 1, 8), end(23)),
    ]
    attempts = sort_attempts(events, [], {})
    assert [(own.number, own.launch and own.launch.unix_ns // S, own.began_ns // S) for own in attempts] == [
        *[(0, 10, 10), (1, 10, 12), (3, 10, 15), (0, 20, 20), (1, 20, 22)]
    ]
    assert [[pid for each in own.worlds for pid in each.pids] for own in attempts] == [[1, 2, 5], [3, 4], [6], [7], [8]]
    assert [own.end and own.end.unix_ns // S for own in attempts] == [None, None, 16, None, 23]
    assert [len(own.nodes) for own in attempts] == [0, 1, 0, 0, 0]


def test_events_without_a_launch_form_attempts_too() -> None:
    attempts = sort_attempts([world(11, 2, 1), world(12, 2, 2), world(13, 4, 3)], [], {})
    assert [(own.number, own.launch, own.began_ns // S) for own in attempts] == [(2, None, 11), (4, None, 13)]


def test_processes_belong_to_the_attempt_that_started_them() -> None:
    events = [launch(10), world(11, 0, 100, 101), world(20, 1, 200, 201)]
    workers = [
        *(worker(0, start(12, 100)), worker(0, start(21, 200, step=3))),
        *(worker(1, start(12, 101)), worker(1, start(22, 201, step=3))),
    ]
    assert shown(sort_attempts(events, workers, {})) == [
        (0, 10, {0: 100, 1: 101}),
        (1, 20, {0: 200, 1: 201}),
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (start(12, 100), start(13, 101), [{0: 100, 1: 101}]),
        (start(12, 100), start(13, 101, step=3), [{0: 100}, {1: 101}]),
        (start(12, 100), start(13, 101, size=3), [{0: 100}, {1: 101}]),
    ],
)
def test_processes_without_a_launcher_are_together_if_their_worlds_are_equal(
    first: StartEvent, second: StartEvent, expected: list[dict[int, int]]
) -> None:
    found = shown(sort_attempts([], [worker(0, first), worker(1, second)], {}))
    assert [pids for _, _, pids in found] == expected
    assert [began for _, began, _ in found] == [12, 13][: len(expected)]


@pytest.mark.parametrize(("second", "attempt"), [(9, None), (10, 0), (15, 0), (20, 0), (21, None)])
def test_process_of_a_launch_that_has_named_none_began_before_its_end(second: int, attempt: int | None) -> None:
    attempts = sort_attempts([launch(10), end(20)], [worker(0, start(second, 100))], {})
    (own,) = [each for each in attempts if each.workers]
    assert (own.launch is None) == (attempt is None)
    assert [each.began_ns for each in attempts] == sorted(each.began_ns or 0 for each in attempts)


def test_process_that_ended_before_its_start_is_in_the_last_attempt_before_its_next() -> None:
    workers = [
        *(worker(0, start(12, 100)), worker(0, start(22, 200)), worker(0, start(32, 300))),
        *(worker(1, start(12, 101)), worker(1, END), worker(1, start(32, 301))),
        *(worker(2, END), worker(2, END), worker(2, start(12, 102))),
    ]
    events = [launch(10), world(11, 0, 100, 101, 102), world(21, 1, 200), world(31, 2, 300, 301)]
    assert [pids for _, _, pids in shown(sort_attempts(events, workers, {}))] == [
        *[{2: None}, {2: None}],
        *[{0: 100, 1: 101, 2: 102}, {0: 200, 1: None}, {0: 300, 1: 301}],
    ]


def test_heartbeat_belongs_to_the_attempt_of_its_process() -> None:
    def said(pid: int, second: int, attempt: int = 0) -> Beat:
        return convert(beat(pid=pid, unix_ns=second * S, attempt=attempt, rank=0), Beat)

    events = [launch(10), world(11, 0, 100), world(20, 1, 200)]
    workers = [worker(0, start(12, 100)), worker(0, start(21, 200, step=3))]
    found = sort_attempts(
        events, workers, {"a/b/old.json": said(7, 1), "a/x.json": said(100, 15), "y": said(200, 25, 1)}
    )
    assert [own.beat_files for own in found] == [{0: "a/x.json"}, {0: "y"}]
    assert [own.beats[0].pid for own in found] == [100, 200]


# ---- the processes of one rank ---------------------------------------------------------------------------------------


def collective(seq: int, second: int) -> CollectiveEvent:
    return convert(event("collective", seq=seq, start_ns=second * S, end_ns=second * S + 1), CollectiveEvent)


def span(second: int) -> SpanEvent:
    return convert(event("span", start_ns=second * S, end_ns=second * S + 1), SpanEvent)


STEP, END = convert(event("step"), StepEvent), EndEvent(step=1, status="completed", weights_sha256=None)


@pytest.mark.parametrize(
    ("events", "lengths"),
    [
        ([], []),
        ([start(1, 1), STEP], [2]),
        ([start(1, 1), STEP, END], [3]),
        ([start(1, 1), END, start(2, 2), STEP], [2, 2]),
        ([start(1, 1), STEP, start(2, 2), STEP, STEP], [2, 3]),
        ([start(1, 1), span(2), start(2, 2)], [2, 1]),
        ([collective(0, 1), start(1, 1), collective(1, 2)], [3]),
        ([collective(0, 1), start(1, 1), collective(0, 2), start(2, 2)], [2, 2]),
        ([start(1, 1), collective(0, 5), collective(0, 3), STEP], [4]),  # written late, begun before
        ([start(1, 1), collective(0, 5), STEP, span(7), collective(0, 8)], [4, 1]),
        ([start(1, 1), span(7), collective(0, 8)], [3]),  # the first collective
        ([start(1, 1), collective(0, 5), END, start(2, 2), collective(0, 8), collective(1, 9)], [3, 3]),
        ([start(1, 1), collective(1, 5), collective(0, 6), start(2, 2)], [2, 2]),
        ([start(1, 1), END, collective(0, 5), start(2, 2)], [2, 2]),
        ([start(1, 1), END, END], [2, 1]),
    ],
)
def test_events_of_a_rank_are_cut_where_a_process_ends_or_begins(events: list[Any], lengths: list[int]) -> None:
    found = cut(4, events)
    assert [len(own.events) for own in found] == lengths
    assert [each for own in found for each in own.events] == events
    assert {own.rank for own in found} <= {4}


def test_worker_says_its_last_step_status_and_time() -> None:
    empty = worker(0)
    assert (empty.start, empty.error, empty.status, empty.last_step, empty.last_ns) == (None, None, None, 0, None)
    begun = worker(0, start(1, 1, step=4))
    assert (begun.last_step, begun.status) == (4, None)
    ended = worker(0, start(1, 1, step=4), convert(event("step", step=7, end_ns=9), StepEvent), span(1), END)
    assert (ended.last_step, ended.status, ended.last_ns) == (7, "completed", S + 1)


@pytest.mark.parametrize(("num_later", "second"), [(48, 900), (49, 900), (50, 5)])
def test_last_time_is_among_the_last_50_events(num_later: int, second: int) -> None:
    spans = [span(900), *[span(5)] * num_later]
    assert (worker(0, *spans).last_ns or 0) // S == second


def test_ranks_of_an_attempt_are_those_of_its_world_and_others_that_reported() -> None:
    assert Attempt(0, None).ranks == []
    assert Attempt(0, None, worlds=[world(1, 0, 100, 101)]).ranks == [0, 1]
    assert Attempt(0, None, workers={5: worker(5, start(1, 1, size=3))}).ranks == [0, 1, 2, 5]
    assert Attempt(0, None, beats={2: convert(beat(rank=2, world_size=2), Beat)}).ranks == [0, 1, 2]
    assert Attempt(0, None, workers={1: worker(1, END)}).ranks == [1]
    assert Attempt(0, None, worlds=[world(1, 0, 100, 101)]).pids == {100, 101}


def test_node_of_a_rank_is_known_from_its_world_its_start_or_its_heartbeat() -> None:
    of_world = Attempt(0, None, worlds=[world(1, 0, 100)])
    assert (of_world.node_of(0), of_world.node_of(1)) == (0, None)
    begun = convert(event("start", node_rank=3), StartEvent)
    said = convert(beat(rank=1, node_rank=4), Beat)
    both = Attempt(0, None, workers={0: worker(0, begun), 1: worker(1, END)}, beats={1: said})
    assert [both.node_of(rank) for rank in range(3)] == [3, 4, None]


def test_time_of_a_rank_is_that_of_its_start_or_its_heartbeat() -> None:
    begun = convert(event("start", unix_ns=1000, mono_ns=100), StartEvent)
    said = convert(beat(rank=1, unix_ns=5000, beat_ns=300), Beat)
    own = Attempt(0, None, workers={0: worker(0, begun, span(0))}, beats={1: said, 0: said})
    assert [own.unix_ns(rank, 250) for rank in range(3)] == [1150, 4950, None]
    assert own.unix_ns(0, None) is None
    assert [own.last_sign_ns(rank) for rank in range(3)] == [5000, 5000, None]
    assert Attempt(0, None, workers={0: worker(0, begun, span(7))}).last_sign_ns(0) == 7 * S + 1 - 100 + 1000


def test_only_the_last_1000_starts_of_a_rank_are_kept() -> None:
    problems: list[str] = []
    many = [worker(0, start(number, number)) for number in range(1001)] + [worker(1)] * 1000
    kept = last_workers(many, problems)
    assert (len(kept), kept[0].start and kept[0].start.pid) == (2000, 1)
    assert problems == ["rank 0: showing the last 1000 of 1001 starts"]


def said(pid: int, second: int, attempt: int = 0, rank: int = 0) -> Beat:
    return convert(beat(pid=pid, unix_ns=second * S, attempt=attempt, rank=rank), Beat)


@pytest.mark.parametrize(
    ("file", "second", "expected"),
    [
        ("heartbeats/rank_0.json", 15, [{}, {0: 9}]),  # of the last attempt, which it is younger than
        ("heartbeats/rank_0.json", 20, [{}, {0: 9}]),
        ("heartbeats/rank_0.json", 9, [{}, {}, {0: 9}]),
        ("heartbeats/attempt_0/rank_0.json", 25, [{}, {}]),
    ],
)
def test_heartbeat_of_an_unknown_process(file: str, second: int, expected: list[dict[int, int]]) -> None:
    events = [launch(5), world(6, 0, 100), world(10, 1, 200)]
    attempts = sort_attempts(events, [], {file: said(9, second, attempt=2)})
    assert [{rank: own.pid for rank, own in each.beats.items()} for each in attempts] == expected
    assert len(attempts) == 2 or (attempts[2].number, attempts[2].began_ns) == (2, second * S)


def test_event_of_a_later_number_begins_an_attempt_and_of_an_earlier_one_does_not() -> None:
    attempts = sort_attempts([launch(10), world(11, 1, 1), world(12, 0, 2), world(13, 2, 3)], [], {})
    assert [(own.number, [pid for each in own.worlds for pid in each.pids]) for own in attempts] == [
        *[(1, [1, 2]), (2, [3])]
    ]
