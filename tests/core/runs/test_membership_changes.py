"""Membership changes, from attempts that each say only which process had which rank, and what its members report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from frog.core.runs.changes import Change, find_changes, follow_processes, identities_of, places_of
from frog.core.runs.launcher_schema import ExitEvent


def attempt(pids: dict[int, int], event: dict[str, Any] | None = None, **more: Any) -> Any:
    """Return an attempt: the process id of each rank. event: a change, as all members report it, with identities."""
    workers = {}
    for rank, pid in pids.items():
        said = None
        if event is not None:
            fields = {name: value for name, value in event.items() if name != "took"}
            took_ns = event.get("took", [0] * len(pids))[rank]
            said = SimpleNamespace(**fields, identity=event["members"][rank], took_ns=took_ns)
        start = SimpleNamespace(pid=pid, host="pond")
        workers[rank] = SimpleNamespace(start=start, last=lambda kind, said=said: said)
    empty: dict[str, Any] = {"replacements": [], "exits": [], "hangs": [], "left_out": [], "launch": None, "end": None}
    return SimpleNamespace(workers=workers, ranks=list(pids), **{**empty, **more})


def replacement(pid: int, lost: int) -> Any:
    return SimpleNamespace(pid=pid, lost=lost)


FIRST = attempt({0: 10, 1: 11, 2: 12}, launch="started")
LOST = attempt({0: 10, 1: 12}, {"step": 3, "members": [0, 2], "took": [5, 7]})
JOINED = attempt({0: 10, 1: 12, 2: 20}, {"step": 6, "members": [0, 2, 3], "took": [1, 2, 99]})


def test_lost_and_joined_ranks_have_identities_that_their_processes_keep() -> None:
    attempts = [FIRST, LOST, JOINED]
    assert identities_of(attempts) == {10: 0, 11: 1, 12: 2, 20: 3}
    assert find_changes(attempts) == [
        Change(0, 1, 3, lost={1: 1}, joined=[], replaced={}, members=[0, 2], took_ns=7),
        Change(1, 2, 6, lost={}, joined=[3], replaced={}, members=[0, 2, 3], took_ns=2),  # not of the joined rank
    ]


def test_restarted_world_begins_with_its_ranks_as_identities() -> None:
    again = attempt({0: 30, 1: 31}, launch="started")
    shrunk = attempt({0: 31}, {"step": 9, "members": [1]})
    attempts = [FIRST, LOST, again, shrunk]
    assert identities_of(attempts) == {10: 0, 11: 1, 12: 2, 30: 0, 31: 1}
    assert find_changes(attempts)[1] == Change(2, 3, 9, lost={0: 0}, joined=[], replaced={}, members=[1], took_ns=0)


def test_attempt_of_the_same_processes_without_a_report_is_no_fresh_start() -> None:
    silent = attempt({0: 12, 1: 10})
    assert identities_of([FIRST, silent]) == {10: 0, 11: 1, 12: 2}
    assert find_changes([FIRST, silent]) == []
    assert identities_of([silent]) == {12: 0, 10: 1}  # as the first attempt it is one


def test_replacement_takes_the_place_of_the_rank_that_was_lost() -> None:
    """Process 21 replaced 20, which never joined and had replaced 11."""
    first = attempt({0: 10, 1: 11}, launch="started", replacements=[replacement(20, 11), replacement(21, 20)])
    joined = attempt({0: 10, 1: 21}, {"step": 4, "members": [0, 2]})
    assert places_of([first, joined]) == {20: 1, 21: 1}
    (change,) = find_changes([first, joined])
    assert (change.lost, change.joined, change.replaced) == ({1: 1}, [2], {2: 1})
    circle = attempt({0: 10}, replacements=[replacement(20, 21), replacement(21, 20)])
    assert places_of([circle]) == {}


def test_end_of_a_process_belongs_to_its_last_attempt_and_rank() -> None:
    def ended(pid: int, rank: int) -> ExitEvent:
        same = {"unix_ns": 1, "attempt": 0, "node": 0, "node_rank": 0, "error": None, "traceback": None}
        return ExitEvent(**same, rank=rank, pid=pid, code=1)

    first = attempt(
        {0: 10, 1: 11, 2: 12}, launch="started", end="end", exits=[ended(11, 1), ended(12, 2), ended(99, 5)]
    )
    lost = attempt({0: 10, 1: 12}, {"step": 3, "members": [0, 2]})
    other = attempt({0: 12}, launch="started")
    follow_processes([first, lost, other])
    assert [(event.pid, event.rank) for event in first.exits] == [(11, 1), (99, 5)]
    assert [(event.pid, event.rank) for event in lost.exits] == [(12, 1)]
    assert (first.end, lost.end, other.exits) == (None, "end", [])
