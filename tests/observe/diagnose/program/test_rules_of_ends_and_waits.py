"""Single rules about ranks that ended, wait in torch, or disagree about a group, on evidence of a few words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from seen import SECOND, at, evidence, failed, rank

from frog.core.runs.launcher_schema import StallEvent
from frog.core.runs.observed import CodeLine, Collectives, Joining, Status
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program import run_folder_evidence as folder
from frog.observe.diagnose.program.end_rules import interrupted, killed, lost_node, own_exception
from frog.observe.diagnose.program.evidence import Evidence, Group, GroupNames, JobState, RankEvidence, place
from frog.observe.diagnose.program.join_rules import awaits_too_many, groups_differ
from frog.observe.diagnose.program.stack_rules import differing_stacks, joined_without, reason_of_absence


def short(found: Diagnosis | None) -> Any:
    return found and (found.fault, found.rank, found.certain)


# ---- exceptions ------------------------------------------------------------------------------------------------------


def raised(number: int, kind: str = "ValueError", message: str = "no", line: int = 5, second: int = 0) -> RankEvidence:
    return rank(number, exit_code=1, error=failed(kind, message, line, second))


@pytest.mark.parametrize(
    ("ranks", "fault", "first", "certain", "words"),
    [
        ([raised(0), rank(1)], "raise", 0, True, "rank 0 raised ValueError at train.py:5 (main): no"),
        ([raised(0), raised(1)], "raise", 0, True, "all ranks raised ValueError at train.py:5 (main): no"),
        ([raised(0), raised(1), rank(2)], "raise", 0, True, "ranks 0 and 1 raised ValueError"),
        (
            [raised(0, second=9), raised(1, line=6, second=4)],
            "raise",
            1,
            True,
            "rank 1 raised ValueError at train.py:6",
        ),
        ([raised(0), raised(1, line=6)], "raise", 0, False, "rank 0 raised ValueError at train.py:5"),
        ([raised(0), raised(1, line=6, second=4)], "raise", 1, True, "rank 1 raised"),
        (
            [raised(1, "torch.OutOfMemoryError", "CUDA out of memory"), rank(0)],
            "memory",
            1,
            True,
            "ran out of GPU memory at",
        ),
        (
            [raised(0, "RuntimeError", "CUBLAS_STATUS_ALLOC_FAILED"), rank(1)],
            "memory",
            0,
            True,
            "ran out of GPU memory",
        ),
        ([raised(0, "MemoryError", ""), rank(1)], "memory", 0, True, "rank 0 ran out of memory at train.py:5"),
        ([raised(0, "RuntimeError", "can't allocate memory"), rank(1)], "memory", 0, True, "ran out of memory at"),
        (
            [raised(0, "OSError", "No space left on device"), rank(1)],
            "disk",
            0,
            True,
            "rank 0 could not write a file at",
        ),
        (
            [raised(0, "ValueError", "loss is NaN"), rank(1)],
            "nan",
            0,
            True,
            "stopped at a value that is not finite, at",
        ),
        ([raised(0, "FloatingPointError", "x"), rank(1)], "nan", 0, True, "rank 0 stopped at a value"),
        ([raised(0, "ValueError", "banana"), rank(1)], "raise", 0, True, "rank 0 raised"),
        (
            [raised(0, "ValueError", "nan"), raised(1, "ValueError", "nan")],
            "nan",
            None,
            False,
            "ranks 0 and 1 stopped at a value that is not finite",
        ),
        (
            [raised(0, "RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed."), rank(1)],
            "loader",
            0,
            True,
            "a DataLoader worker of rank 0 ended by the signal Killed, so rank 0 could not continue at train.py:5",
        ),
    ],
)
def test_exception_of_the_first_rank_is_named(
    ranks: list[RankEvidence], fault: str, first: int | None, certain: bool, words: str
) -> None:
    found = own_exception(evidence(*ranks, hung=False))
    assert short(found) == (fault, first, certain)
    assert found is not None
    assert words in found.finding


def test_nothing_was_raised_without_an_error_of_its_own() -> None:
    assert own_exception(evidence(rank(0), rank(1))) is None


def stopped(*ranks: RankEvidence, hung: bool = False, by_user: bool = True) -> Evidence:
    found = evidence(*ranks, hung=hung)
    found.stopped_by_user = by_user
    return found


def test_program_that_a_user_stopped_has_no_fault() -> None:
    found = interrupted(stopped(rank(0), rank(1)))
    assert found is not None
    assert (found.fault, found.outcome) == ("interrupted", "interrupted")
    for other in (stopped(rank(0), hung=True), stopped(rank(0), by_user=False), stopped(raised(0))):
        assert interrupted(other) is None


# ---- signals ---------------------------------------------------------------------------------------------------------


def dead(number: int, code: int, second: int | None = None, **fields: Any) -> RankEvidence:
    return rank(number, exit_code=code, exited_ns=None if second is None else second * SECOND, **fields)


@pytest.mark.parametrize(
    ("ranks", "fault", "first", "words"),
    [
        ([dead(0, -9), rank(1)], "kill", 0, "rank 0 was killed by SIGKILL"),
        ([dead(0, -9, line=at(7)), rank(1)], "kill", 0, "killed by SIGKILL; it was last seen at train.py:7 (main)"),
        ([dead(0, -11, 9), dead(1, -11, 5)], "crash", 1, "rank 1 crashed with SIGSEGV"),
        ([dead(0, -9), dead(1, -11), dead(2, -9)], "crash", 1, "rank 1 crashed with SIGSEGV"),  # the odd one
        ([dead(0, -15), rank(1)], None, None, ""),
        ([dead(0, -2), rank(1)], None, None, ""),
        ([dead(0, 9), rank(1)], None, None, ""),
        ([dead(0, -9, state="ended"), rank(1)], None, None, ""),
        ([dead(0, -6, error=failed("RuntimeError", "x", 3)), rank(1)], None, None, ""),
        ([dead(0, -6), rank(1)], "crash", 0, "rank 0 crashed with SIGABRT"),
        ([dead(0, -9, 9), dead(1, 3, 5)], None, None, ""),  # the launcher killed the rest
        ([dead(0, -9, 5), dead(1, 3, 9)], "kill", 0, "rank 0 was killed"),
        ([dead(0, -9, 5), dead(1, 3, 5)], "kill", 0, "rank 0 was killed"),
        ([dead(0, -11, 9), dead(1, 3, 5)], "crash", 0, "rank 0 crashed"),
    ],
)
def test_first_rank_that_a_signal_ended_is_named(
    ranks: list[RankEvidence], fault: str | None, first: int | None, words: str
) -> None:
    found = killed(evidence(*ranks, hung=False))
    assert (found and (found.fault, found.rank)) == (fault and (fault, first))
    assert words in (found.finding if found else "")


def test_call_in_which_others_lost_a_killed_rank_is_named() -> None:
    """Its own line is as old as its last heartbeat."""
    peer = failed("RuntimeError", "Connection closed by peer [127.0.0.1]:2", 7)
    lost = rank(1, ("all_reduce", 4, 7), pending=1, error=peer, exit_code=1)
    found = killed(evidence(dead(0, -9), lost, hung=False))
    assert found is not None
    assert found.peer_line == "train.py:7 (main)"
    assert found.finding.endswith(
        "; rank 1 waited for it in all_reduce of 4 float (collective 1 of all ranks), called at train.py:7 (main)"
    )


def test_killed_rank_of_a_job_without_memory_ran_out_of_it() -> None:
    job = evidence(dead(0, -9), rank(1), hung=False)
    job.jobs = [JobState("OUT_OF_MEMORY", "slurm.log", "oom-kill")]
    found = killed(job)
    assert short(found) == ("memory", 0, True)


@pytest.mark.parametrize(
    ("other", "deadline_s", "expected"),
    [
        (rank(1, ("all_reduce", 2, 3), pending=1), None, ("kill", 0)),
        (rank(1, ("all_reduce", 2, 3), pending=1, exit_code=-9), None, None),  # all of them were killed
        (rank(1, ("all_reduce", 2, 3), pending=1), 60.0, None),  # the launcher found the hang
        (rank(1, ("all_reduce", 2, 3)), None, None),
    ],
)
def test_killed_rank_explains_a_hang_only_if_the_others_still_wait(
    other: RankEvidence, deadline_s: float | None, expected: Any
) -> None:
    hang = evidence(dead(0, -9), other, hung=True)
    hang.deadline_s = deadline_s
    found = killed(hang)
    assert (found and (found.fault, found.rank)) == expected


def test_lost_node_is_that_of_all_its_ranks() -> None:
    found = lost_node(evidence(rank(0), rank(1, node_lost_ns=5), rank(2, node_lost_ns=5)))
    assert found is not None
    assert (found.fault, found.rank) == ("node", 1)
    assert found.finding.startswith("the node of ranks 1 and 2 was lost")
    assert lost_node(evidence(rank(0))) is None


# ---- ranks inside torch ----------------------------------------------------------------------------------------------

INSIDE = [CodeLine(file="/x/torch/distributed/distributed_c10d.py", line=1, function="barrier"), at(8)]
OUTSIDE = [at(20)]
REDUCING = CodeLine(file=INSIDE[0].file, line=2, function="all_reduce")


def waiting(number: int, **fields: Any) -> RankEvidence:
    return RankEvidence(number, **{"state": "running", "stack": INSIDE, "line": at(8), **fields})


@pytest.mark.parametrize(
    ("other", "fault", "certain", "words"),
    [
        ({"state": "ended"}, "ended", True, "rank 1 ended without an error"),
        ({"exit_code": 0}, "ended", True, "rank 1 ended without an error"),
        ({"stack": OUTSIDE, "stopped": True, "line": at(20)}, "stop", True, "rank 1 was stopped at train.py:20 (main)"),
        ({"stopped": True}, "stop", True, "rank 1 was stopped at train.py:8 (main)"),
        ({"stack": OUTSIDE, "cpu_busy": True, "line": None}, "busy", False, "rank 1 was still computing"),
        ({"stack": OUTSIDE, "cpu_busy": False, "line": None}, "blocked", False, "rank 1 was elsewhere, and did not"),
        ({"stack": [], "line": at(20)}, "blocked", False, "rank 1 was at train.py:20 (main), and did not compute"),
    ],
)
def test_rank_that_does_not_come_to_a_call_of_torch_is_named(
    other: dict[str, Any], fault: str, certain: bool, words: str
) -> None:
    found = joined_without(evidence(waiting(0), waiting(1, **other)))
    assert short(found) == (fault, 1, certain)
    assert found is not None
    assert words in found.finding
    assert found.peer_line == "train.py:8 (main)"


def test_no_rank_is_missing_if_all_wait_or_none_does() -> None:
    assert joined_without(evidence(waiting(0), waiting(1))) is None
    assert joined_without(evidence(waiting(0, stack=OUTSIDE), waiting(1, stack=[]))) is None
    assert joined_without(evidence(waiting(0), waiting(1, stack=OUTSIDE), hung=False)) is None
    pending = rank(0, ("all_reduce", 2, 3), pending=1, state="running", stack=INSIDE)
    assert joined_without(evidence(pending, waiting(1, stack=OUTSIDE))) is None
    assert reason_of_absence(RankEvidence(0))[1] == "was elsewhere, and did not compute"


@pytest.mark.parametrize(
    ("stacks", "expected"),
    [
        ([INSIDE], None),
        ([INSIDE, INSIDE], ("stuck", None)),
        ([OUTSIDE, OUTSIDE], None),
        ([INSIDE, INSIDE, OUTSIDE], ("blocked", 2)),
        ([OUTSIDE, INSIDE, OUTSIDE], ("blocked", 0)),
        ([[at(1)], [at(2)]], None),  # each at a line of its own
        ([[at(1)], [at(2)], [at(2)]], ("blocked", 0)),
        ([INSIDE, INSIDE, [REDUCING, at(9)]], ("order", 2)),
    ],
)
def test_stacks_alone_tell_the_odd_rank(stacks: list[list[CodeLine]], expected: Any) -> None:
    ranks = [RankEvidence(number, stack=stack, line=stack[-1]) for number, stack in enumerate(stacks)]
    found = differing_stacks(evidence(*ranks))
    assert (found and (found.fault, found.rank)) == expected
    assert differing_stacks(evidence(*ranks, rank(9))) is None  # its calls are known
    for each in ranks:
        each.seen_ns = 1
    assert differing_stacks(evidence(*ranks)) is None


# ---- groups ----------------------------------------------------------------------------------------------------------


def joins(number: int, size: int | None, as_rank: int | None = None, **fields: Any) -> RankEvidence:
    join = Joining(op="init_process_group", world_size=size, rank=as_rank)
    return RankEvidence(number, joining=join, line=at(4), **fields)


@pytest.mark.parametrize(
    ("ranks", "certain", "words"),
    [
        ([joins(0, 4), joins(1, 4)], True, "with world_size=4, but WORLD_SIZE is 2: 2 ranks were started, and ranks 2"),
        ([joins(0, 3), joins(1, 3)], True, "2 ranks were started, and rank 2 never comes"),
        ([joins(0, 4), joins(1, 2)], False, "rank 0 waits in init_process_group at train.py:4 (main)"),
        ([joins(0, 2)], True, "WORLD_SIZE is 1: 1 rank was started, and rank 1 never comes"),
        ([joins(0, 4, 0), joins(1, 4, 0)], True, "; 2 processes join as rank 0"),
        ([joins(0, 2), joins(1, 2)], None, ""),
        ([joins(0, None), joins(1, None)], None, ""),
        ([joins(0, 1), joins(1, 1)], None, ""),
    ],
)
def test_world_size_above_the_started_ranks_is_named(
    ranks: list[RankEvidence], certain: bool | None, words: str
) -> None:
    found = awaits_too_many(evidence(*ranks))
    assert (found and found.certain) == certain
    assert words in (found.finding if found else "")
    assert awaits_too_many(evidence(*ranks, hung=False)) is None


def grouped(number: int, *groups: tuple[int, ...], new: list[int] | None = None) -> RankEvidence:
    join = Joining(op="new_group", ranks=new, name=str(len(groups) + 1)) if new is not None else None
    names = {str(name): members for name, members in enumerate([(0, 1, 2), *groups])}
    return RankEvidence(number, groups=names, joining=join, line=at(6))


@pytest.mark.parametrize(
    ("ranks", "expected", "words"),
    [
        (
            [grouped(0, new=[0, 1]), grouped(1, new=[0, 1]), grouped(2, new=[0, 2])],
            ("groups", 2, True),
            "rank 2 called new_group number 1 with ranks [0, 2], ranks 0 and 1 with [0, 1]; ",
        ),
        ([grouped(0, new=[0, 1]), grouped(1, new=[1, 0])], None, ""),
        ([grouped(0, (0, 1)), grouped(1, (0, 2))], None, ""),  # none of them waits
        (
            [grouped(0, (0, 1)), grouped(1, (0, 2)), grouped(2, new=[0, 2])],
            ("groups", 0, True),
            "rank 0 called new_group",
        ),
        (
            [grouped(0, new=[0]), grouped(1, new=[1])],
            ("groups", 1, True),
            "rank 1 called new_group number 1 with ranks [1]",
        ),
    ],
)
def test_groups_with_other_members_are_named(ranks: list[RankEvidence], expected: Any, words: str) -> None:
    found = groups_differ(evidence(*ranks))
    assert short(found) == expected
    assert words in (found.finding if found else "")
    assert groups_differ(evidence(*ranks, hung=False)) is None


# ---- the files of a run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "waiting", "taken", "busy"),
    [
        ([["train.py:8", 10]], 4, 10, True),
        ([["train.py:8", 10]], 5, 10, None),
        ([["train.py:8", 10]], 6, 10, False),
        ([["train.py:8", 10]], 10, 30, False),
        ([["train.py:8", 10]], 10, 31, None),
        ([["train.py:8", 10]], 9, 30, None),
        ([["other.py:8", 10]], 0, 10, None),
        ([], 0, 0, None),
    ],
)
def test_beats_tell_whether_a_rank_computed(lines: Any, waiting: int, taken: int, busy: bool | None) -> None:
    samples = SimpleNamespace(lines=[tuple(each) for each in lines], waiting=waiting, taken=taken)
    status: Any = SimpleNamespace(samples=samples, line=CodeLine(file="/home/me/train.py", line=8))
    assert folder._is_busy(status) == busy
    assert folder._is_busy(SimpleNamespace(samples=samples, line=None)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("enqueued", "last", "backend", "expected"),
    [
        (9, 6, "gloo", (6, 5, 3)),
        (9, 9, "gloo", (9, 8, 0)),
        (9, 12, "gloo", (9, 8, 0)),
        (9, 6, "nccl", (9, 8, 0)),
        (9, None, "gloo", (9, 8, 0)),
    ],
)
def test_messages_of_gloo_are_counted_apart(enqueued: int, last: int | None, backend: str, expected: Any) -> None:
    entries = [
        {"group": "0", "seq": seq, "op": "all_reduce", "backend": backend, "done": seq < (last or 0)}
        for seq in ([last - 1, last] if last else [])
    ]
    counts = [{"group": "0", "enqueued": enqueued, "completed": enqueued - 1}]
    table = {"rank": 0, "pid": 1, "unix_ns": 1, "frames": True, "entries": entries, "status": counts}
    own, names = RankEvidence(0), GroupNames({"0": (0, 1)})
    folder._add_counts(own, msgspec.convert(table, Collectives), names)
    group = Group((0, 1), "0")
    assert (own.enqueued[group], own.completed[group], own.num_messages) == expected


@pytest.mark.parametrize(
    ("kind", "ends", "by_user", "hung"),
    [("hang", True, False, True), ("left", False, True, True), ("hang", False, False, False)],
)
def test_stall_says_what_each_rank_did(kind: Any, ends: bool, by_user: bool, hung: bool) -> None:
    roles: Any = {0: "waits", 1: "computes", 2: "stopped", 3: "ended", 4: "idle", 5: "failed"}
    found = Evidence("here", {number: RankEvidence(number, state="running") for number in roles})
    folder._add_stall(
        found,
        StallEvent(unix_ns=1, attempt=0, kind=kind, still_s=7.0, roles=roles, text="", ends=ends, stopped=by_user),
    )
    assert (found.hung, found.deadline_s) == (hung, 7.0 if hung else None)
    assert [found.ranks[number].cpu_busy for number in roles] == [False, True, None, None, False, None]
    assert [found.ranks[number].stopped for number in roles] == [False, False, True, False, False, False]
    assert [found.ranks[number].exit_code for number in roles] == [None, None, None, 0, None, None]


def test_status_of_a_rank_is_its_evidence() -> None:
    table: dict[str, Any] = {
        "rank": 0,
        "local_rank": 0,
        "node_rank": 2,
        "world_size": 1,
        "attempt": 0,
        "host": "a",
        "pid": 7,
        "started_unix_ns": 1,
        "unix_ns": 9,
        "mono_ns": 1,
        "state": "running",
        "cpu_s": 0.0,
        "rss_bytes": 1,
        "groups": [{"group": "0", "enqueued": 4, "completed": 3}],
        "thread": "loader",
        "memory": [[1, 2]],
        "samples": {"taken": 9, "waiting": 1, "lines": [["<frozen>:1", 3], ["a.py:2", 2]], "causes": {"gc": 1}},
    }
    own = RankEvidence(0)
    folder._add_status(own, msgspec.convert(table, Status), GroupNames({"0": (0, 1)}))
    assert (own.host, own.node_rank, own.pid, own.state, own.seen_ns, own.thread) == ("a", 2, 7, "running", 9, "loader")
    assert (own.num_beats, own.often, own.causes, own.memory, own.in_message) == (
        5,
        "a.py:2",
        {"gc": 1},
        [(1, 2)],
        False,
    )
    assert (list(own.enqueued.values()), list(own.completed.values())) == ([4], [3])


# ---- the whole program -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "size", "world"),
    [
        ([0, 1], None, [0, 1]),
        ([0, 3], None, [0, 1, 2, 3]),
        ([1], 3, [0, 1, 2]),
        ([], 2, [0, 1]),
        ([5], 2, [0, 1, 5]),
        ([], None, []),
    ],
)
def test_world_has_all_ranks_that_should_exist(ranks: list[int], size: int | None, world: list[int]) -> None:
    assert Evidence("here", {number: RankEvidence(number) for number in ranks}, world_size=size).world == world


@pytest.mark.parametrize(
    ("changes", "has_failed"),
    [
        ({}, False),
        ({"hung": True}, True),
        ({"jobs": [JobState("COMPLETED"), JobState("RUNNING"), JobState(None)]}, False),
        ({"jobs": [JobState("TIMEOUT")]}, True),
        ({"ended_code": 0}, False),
        ({"ended_code": 3}, True),
        ({"ranks": {0: RankEvidence(0, exit_code=0)}}, False),
        ({"ranks": {0: RankEvidence(0, exit_code=-9)}}, True),
        ({"ranks": {0: RankEvidence(0, error=failed("E", "x"))}}, True),
    ],
)
def test_program_has_failed_if_something_shows_it(changes: dict[str, Any], has_failed: bool) -> None:
    assert Evidence("here", **changes).has_failed == has_failed


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (None, ""),
        (at(4), "train.py:4 (main)"),
        (CodeLine(file="/a/b.py", line=4, function="<module>"), "b.py:4"),
        (CodeLine(file="C:\\a\\b.py", line=4), "b.py:4"),
    ],
)
def test_place_is_the_name_line_and_function(line: CodeLine | None, text: str) -> None:
    assert place(line) == text


def test_groups_of_equal_members_are_numbered_in_the_order_of_their_creation() -> None:
    names = GroupNames({"10": (1, 0), "2": (0, 1), "x": (0, 1, 1), "3": ()})
    assert names.found == {"2": Group((0, 1), "0"), "10": Group((0, 1), "1"), "x": Group((0, 1), "2")}
    assert names.find("3") == Group((), "3")
