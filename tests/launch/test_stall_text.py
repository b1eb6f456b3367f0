"""A hang in words: what each rank does, from its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from frog.core.runs.observed import Collectives, GroupCounts, Observed, ProgramError, Stacks, Status
from frog.launch.stalls import describe_stall
from frog.launch.watchdog import Finding, Kind, Role

REDUCE = {"file": "/me/train.py", "line": 6, "function": "step"}
SLEEP = {"file": "/me/train.py", "line": 8, "function": "load"}
TORCH = {"file": "/site-packages/torch/distributed/distributed_c10d.py", "line": 9, "function": "recv"}


def observed(rank: int, line: dict[str, Any], completed: int = 4, enqueued: int = 4, **files: Any) -> Observed:
    status = {
        **dict.fromkeys(("local_rank", "node_rank", "attempt", "pid", "started_unix_ns", "unix_ns", "mono_ns"), 0),
        "rank": rank,
        "world_size": 3,
        "host": "a",
        "state": "running",
        "cpu_s": 1.0,
        "rss_bytes": 1,
        "line": line,
        "in": line,
        "groups": [{"group": "0", "enqueued": enqueued, "completed": completed}],
    }
    return Observed(Path(), rank, msgspec.convert(status, Status), **files)


def pending(rank: int) -> Collectives:
    entry = {"group": "0", "seq": 5, "op": "all_reduce", "sizes": [[10]], "dtypes": ["Float"], "line": REDUCE}
    head = {"rank": rank, "pid": 0, "unix_ns": 0, "frames": True}
    return msgspec.convert({**head, "entries": [{**entry, "done": False}]}, Collectives)


def describe(kind: Kind, roles: dict[int, Role], *evidence: Observed) -> list[str]:
    finding = Finding(kind, 12.3, roles, kind is not Kind.COMPUTING)
    return describe_stall(finding, {own.rank: own for own in evidence}).splitlines()


def test_hang_names_the_collective_and_the_line_of_each_rank() -> None:
    frames = [{**SLEEP, "code": "queue.get()"}, TORCH]
    main = {"name": "MainThread", "main": True, "frames": frames}
    stacks = msgspec.convert({"rank": 1, "pid": 0, "unix_ns": 0, "threads": [main]}, Stacks)
    lines = describe(
        Kind.HANG,
        {0: Role.WAITS, 1: Role.IDLE, 2: Role.WAITS},
        observed(0, REDUCE, enqueued=5, collectives=pending(0)),
        observed(1, SLEEP, stacks=stacks),
        observed(2, REDUCE, enqueued=5, collectives=pending(2)),
    )
    assert lines == [
        "hang: no rank has finished a collective or computed anything for 12 s",
        "  ranks 0, 2: wait in all_reduce number 5 of group 0 (Float [10]) at /me/train.py:6 in step",
        "  rank 1: waits outside torch.distributed at /me/train.py:8 in load (queue.get()), after 4 collectives",
    ]


def test_rank_without_a_dump_is_described_from_its_status() -> None:
    lines = describe(Kind.HANG, {0: Role.WAITS}, observed(0, REDUCE, enqueued=5))
    assert lines[1:] == ["  rank 0: waits in collective number 5 of group 0 at /me/train.py:6 in step"]


def test_rank_in_recv_is_described_by_the_function() -> None:
    own = observed(0, REDUCE)
    own.status = msgspec.structs.replace(own.status, inside=msgspec.convert(TORCH, type(own.status.line)))  # type: ignore[union-attr]
    assert describe(Kind.HANG, {0: Role.WAITS}, own)[1:] == ["  rank 0: waits in recv at /me/train.py:6 in step"]


def test_rank_that_waits_for_a_message_is_described_by_its_line() -> None:
    own = observed(0, REDUCE)
    own.status = msgspec.structs.replace(own.status, in_message=True)  # type: ignore[type-var]
    assert describe(Kind.HANG, {0: Role.WAITS}, own)[1:] == ["  rank 0: waits for a message at /me/train.py:6 in step"]


def test_rank_that_has_left_is_in_the_heading() -> None:
    error = {"rank": 1, "pid": 0, "unix_ns": 0, "type": "ValueError", "line": SLEEP}
    failed = observed(1, SLEEP, error=msgspec.convert(error, ProgramError))
    lines = describe(Kind.LEFT, {0: Role.WAITS, 1: Role.FAILED}, observed(0, REDUCE, enqueued=5), failed)
    assert lines[0] == "hang: the other ranks have waited for rank 1 for 12 s"
    expected = "  rank 1: failed with ValueError at /me/train.py:8 in load, but its process has not ended"
    assert lines[2] == expected


def test_slow_rank_is_in_the_heading() -> None:
    lines = describe(
        Kind.COMPUTING, {0: Role.WAITS, 1: Role.COMPUTES}, observed(0, REDUCE, enqueued=5), observed(1, SLEEP)
    )
    assert lines[0] == "rank 1 computed for 12 s while other ranks wait in a collective"
    assert lines[2] == "  rank 1: computes at /me/train.py:8 in load, after 4 collectives"


@pytest.mark.parametrize(
    ("role", "text"),
    [
        (Role.STOPPED, "are stopped at /me/train.py:8 in load, after 4 collectives"),
        (Role.COMPUTES, "compute at /me/train.py:8 in load, after 4 collectives"),
        (Role.ENDED, "have ended, after 4 collectives"),
        (Role.FAILED, "failed, but their processes have not ended"),
    ],
)
def test_several_ranks_have_a_verb_in_the_plural(role: Role, text: str) -> None:
    lines = describe(Kind.HANG, {0: role, 1: role}, observed(0, SLEEP), observed(1, SLEEP))
    assert lines[1:] == [f"  ranks 0, 1: {text}"]
    assert describe(Kind.HANG, {0: Role.WAITS, 1: Role.WAITS})[1:] == ["  ranks 0, 1: wait"]


@pytest.mark.parametrize(("backend", "after"), [("gloo", "after 1 collective"), ("nccl", "after 4 collectives")])
def test_messages_that_gloo_counts_are_not_collectives(backend: str, after: str) -> None:
    entry = {"group": "0", "seq": 1, "op": "all_reduce", "backend": backend, "done": True}
    counts = {"group": "0", "enqueued": 4, "completed": 4}
    record = {"rank": 1, "pid": 0, "unix_ns": 0, "frames": True, "status": [counts], "entries": [entry]}
    own = observed(1, SLEEP, collectives=msgspec.convert(record, Collectives))
    assert describe(Kind.HANG, {1: Role.IDLE}, own)[1].endswith(after)


@pytest.mark.parametrize("role", Role)
def test_rank_without_evidence_has_only_its_role(role: Role) -> None:
    assert describe(Kind.HANG, {3: role})[1:] == [f"  rank 3: {role.value}"]


def test_many_different_ranks_are_cut() -> None:
    ranks = [observed(rank, {**SLEEP, "line": rank}) for rank in range(30)]
    lines = describe(Kind.HANG, dict.fromkeys(range(30), Role.IDLE), *ranks)
    assert (len(lines), lines[-1]) == (14, "  and 18 more groups of ranks")


@pytest.mark.parametrize(
    ("file", "function", "text"),
    [
        ("HERE/sub/my.py", "main", " at sub/my.py:8 in main"),
        ("HERE/my.py", "<module>", " at my.py:8"),
        ("/elsewhere/my.py", "", " at /elsewhere/my.py:8"),
        ("my.py", "main", " at my.py:8 in main"),
    ],
)
def test_line_is_relative_to_the_folder_in_which_the_user_is(
    file: str, function: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = {"file": file.replace("HERE", str(tmp_path)), "line": 8, "function": function}
    (_, found) = describe(Kind.HANG, {0: Role.STOPPED}, observed(0, line))
    assert found == f"  rank 0: is stopped{text}, after 4 collectives"


def test_oldest_pending_collective_is_named_with_all_its_tensors() -> None:
    head = {"rank": 0, "pid": 0, "unix_ns": 0, "frames": True}
    entry = {"group": "0", "op": "all_gather", "sizes": [[10], [2, 3]], "dtypes": ["Float", "Int"], "line": None}
    entries = [{**entry, "seq": seq, "done": seq < 5} for seq in (4, 5, 6)]
    own = observed(0, REDUCE, enqueued=6, collectives=msgspec.convert({**head, "entries": entries}, Collectives))
    assert describe(Kind.HANG, {0: Role.WAITS}, own)[1:] == [
        "  rank 0: waits in all_gather number 5 of group 0 (Float [10], Int [2, 3]) at /me/train.py:6 in step"
    ]


def test_group_with_a_pending_collective_is_named() -> None:
    own = observed(0, REDUCE, enqueued=4)
    counts = [{"group": name, "enqueued": 9, "completed": done} for name, done in (("0", 9), ("1", 7), ("2", 8))]
    own.status = msgspec.structs.replace(own.status, groups=msgspec.convert(counts, list[GroupCounts]))  # type: ignore[type-var]
    assert describe(Kind.HANG, {0: Role.WAITS}, own)[1:] == [
        "  rank 0: waits in collective number 8 of group 1 at /me/train.py:6 in step"
    ]


@pytest.mark.parametrize(("groups", "last"), [(12, None), (13, "  and 1 more group of ranks")])
def test_groups_of_ranks_are_shown_up_to_a_limit(groups: int, last: str | None) -> None:
    ranks = [observed(rank, {**SLEEP, "line": rank}) for rank in range(groups)]
    lines = describe(Kind.HANG, dict.fromkeys(range(groups), Role.IDLE), *ranks)
    assert len(lines) == 1 + groups
    assert (lines[-1] == last) == (last is not None)
