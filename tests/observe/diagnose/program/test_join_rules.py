"""Ranks that join worlds of another size, or create groups with other members, on hand-written evidence."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest
from seen import at, changed, evidence, rank

from frog.core.runs.observed import CodeLine, Joining
from frog.observe.diagnose.program.evidence import Group, RankEvidence
from frog.observe.diagnose.program.program_diagnosis import diagnose_program
from frog.observe.hook.frog_observer.unrecorded_calls import joining_of


def joins(number: int, size: int | None, own: int | None = None) -> RankEvidence:
    join = Joining(op="init_process_group", world_size=size, rank=own)
    return RankEvidence(number, state="running", line=at(6), joining=join, sources=[f"rank_{number}"])


def test_world_size_of_the_call_that_is_larger_than_the_environments_is_certain() -> None:
    found = diagnose_program(evidence(joins(0, 4), joins(1, 4)))
    assert (found.fault, found.rank, found.line, found.certain) == ("world_size", 0, "train.py:6 (main)", True)
    assert "with world_size=4, but WORLD_SIZE is 2: 2 ranks were started, and ranks 2 and 3 never come" in found.finding


@pytest.mark.parametrize("size", [None, 2])
def test_ranks_of_the_right_world_that_do_not_meet_are_no_fault_of_its_size(size: int | None) -> None:
    found = diagnose_program(evidence(joins(0, size), joins(1, size)))
    assert (found.fault, found.rank, found.line, found.certain) == ("start", 0, "train.py:6 (main)", False)
    assert found.finding == "all ranks wait for each other in init_process_group at train.py:6 (main), and do not meet"


@pytest.mark.parametrize(
    ("value", "is_named"), [("str(free_port())", True), ('"29500"', False), ("str(29500)", False), ("port", True)]
)
def test_line_that_computes_where_ranks_meet_is_named(tmp_path: Path, value: str, is_named: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(f'def main():\n    os.environ["MASTER_PORT"] = {value}\n    dist.init_process_group("gloo")\n')
    ranks = [joins(number, 2) for number in (0, 1)]
    for each in ranks:
        each.line = CodeLine(file=str(script), line=3, function="main")
    found = diagnose_program(evidence(*ranks))
    assert (f'`os.environ["MASTER_PORT"] = {value}` at train.py:2 (main)' in found.finding) == is_named


def test_ranks_of_which_one_has_not_come_to_the_start_are_no_ranks_that_do_not_meet() -> None:
    late = RankEvidence(1, state="running", line=at(3), sources=["rank_1"])
    assert diagnose_program(evidence(joins(0, 2), late)).fault != "start"


def test_processes_that_join_as_the_same_rank_are_counted() -> None:
    found = diagnose_program(evidence(joins(0, 4, 0), joins(1, 4, 0)))
    assert found.finding.endswith("; 2 processes join as rank 0")


def created(
    number: int, groups: dict[str, tuple[int, ...]], joining: list[int] | None = None, name: str | None = "1"
) -> RankEvidence:
    one = rank(number, ("all_reduce", 8, 3), world=3, state="running", line=at(9))
    one.groups = {"0": (0, 1, 2), **groups}
    one.joining = Joining(op="new_group", ranks=joining, name=name) if joining else None
    return one


def test_new_group_with_other_ranks_is_named() -> None:
    ranks = [created(0, {}, [0, 1]), created(1, {}, [0, 1]), created(2, {"1": (0, 2)})]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.line, found.certain) == ("groups", 2, "train.py:9 (main)", True)
    assert "rank 2 called new_group number 1 with ranks [0, 2], ranks 0 and 1 with [0, 1]" in found.finding


def test_new_group_that_a_rank_did_not_call_shifts_its_numbers() -> None:
    ranks = [created(number, {"1": (0, 1)}, [0, 1, 2], "2") for number in (0, 1)]
    found = diagnose_program(evidence(*ranks, created(2, {}, [0, 1, 2])))
    assert (found.fault, found.rank, found.certain) == ("groups", 2, True)


def test_number_of_a_group_comes_from_torch_since_calls_for_others_groups_count() -> None:
    """Rank 1 is not in the first group, so that the one it creates is number 2."""
    ranks = [created(0, {}, [0, 2]), created(1, {}, [0, 1], "2"), created(2, {}, [0, 1, 2])]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("groups", 2, True)
    assert "rank 2 called new_group number 1 with ranks [0, 1, 2], rank 0 with [0, 2]" in found.finding


def test_without_torchs_number_of_a_group_the_answer_is_not_certain() -> None:
    ranks = [created(0, {}, [0, 1], None), created(1, {}, [0, 1], None), created(2, {"1": (0, 2)})]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("groups", 2, False)


def test_group_that_is_named_by_its_members_has_no_number() -> None:
    ranks = [created(number, {}, members, "a1b2") for number, members in ((0, [0, 1]), (1, [0, 1]), (2, [0, 2]))]
    assert diagnose_program(evidence(*ranks)).fault != "groups"


def test_groups_of_which_ranks_know_only_their_own_are_no_fault() -> None:
    """torch numbers each call of new_group on all ranks, also on those outside the group."""
    ranks = [created(0, {"1": (0, 1)}), created(1, {"1": (0, 1), "2": (1, 2)}), created(2, {"2": (1, 2)})]
    assert diagnose_program(evidence(*ranks)).fault != "groups"


def distributed(text: str) -> FrameType | None:
    """Return the frame of a function that looks like torch's, while it runs."""
    frames: list[FrameType] = []
    names = {"note": lambda: frames.append(sys._getframe(1))}
    exec(compile(text, "/x/torch/distributed/distributed_c10d.py", "exec"), names)
    return frames[0] if frames else None


EVALUATION = """\
def start():
    group = dist.new_group()
    dist.broadcast(seed, group=group)
for epoch in range(3):
    start()
    dist.all_reduce(grad)
    if rank == 0:
        start()
"""


@pytest.mark.parametrize(
    ("extra", "now", "is_named"),
    [([(3, 8)], 5, True), ([], 8, True), ([], 5, False)],
    ids=["its extra group met another", "it creates its extra group", "without its extra group"],
)
def test_new_group_that_one_rank_called_once_more_is_named_with_its_branch(
    tmp_path: Path, extra: list[tuple[int, ...]], now: int, is_named: bool
) -> None:
    """The group of rank 0's evaluation meets the one of rank 1's next epoch, and so on."""
    script = tmp_path / "train.py"
    script.write_text(EVALUATION)

    def at_lines(*lines: int) -> tuple[CodeLine, ...]:
        names = {2: "start", 3: "start"}
        return tuple(CodeLine(file=str(script), line=line, function=names.get(line, "<module>")) for line in lines)

    def of(number: int, pending: int, *ways: tuple[int, ...]) -> RankEvidence:
        """Return a rank that made calls through these lines: those of `start` in groups of their own."""
        made = rank(number, *[("broadcast", 1, way[0]) for way in ways], pending=pending, state="running")
        counts = {6: iter(range(1, 9)), 3: iter(range(1, 9))}
        for place, (call, way) in enumerate(zip(made.calls, ways, strict=True)):
            group = Group((0, 1), "0" if way[0] == 6 else str(next(counts[3])))
            seq = next(counts[6]) if way[0] == 6 else 1
            made.calls[place] = changed(call, group=group, seq=seq, line=at_lines(way[0])[0], callers=at_lines(*way))
        made.groups = {"0": (0, 1), "1": (0, 1), "2": (0, 1)}
        return made

    creates = of(0, 0, (3, 5), (6,), *extra)
    creates.joining, creates.stack = Joining(op="new_group", name="3"), list(at_lines(2, now))
    creates.line = creates.stack[0]
    waits = of(1, 1, (3, 5), (6,), (3, 5), (6,))
    found = diagnose_program(evidence(creates, waits))
    assert (found.fault, found.rank, found.certain) == ("groups", 0, False)
    assert (found.line, found.peer_line) == ("train.py:2 (start)", "train.py:6")
    assert "rank 0 waits in new_group number 3 at train.py:2 (start), which rank 1 did not call" in found.finding
    assert found.finding.endswith("rank 0 passed `if rank == 0:` in line 7, rank 1 did not") == is_named


def test_variables_of_the_call_are_read_only_as_far_as_they_are_known() -> None:
    frame = distributed("def init_process_group(world_size=4, rank=-1): note()\ninit_process_group()")
    assert frame is not None
    nothing = {"world_size": None, "rank": None, "ranks": None, "name": None}
    assert joining_of([frame]) == {**nothing, "op": "init_process_group", "world_size": 4}
    frame = distributed("def new_group(ranks=None): note()\nnew_group(range(2, 4))")
    assert frame is not None
    assert joining_of([frame]) == {**nothing, "op": "new_group", "ranks": [2, 3]}
    inner = distributed("def _new_group_with_tag(group_name): note()\n_new_group_with_tag('3')")
    assert inner is not None
    assert (joining_of([inner, frame]) or {})["name"] == "3"
    frame = distributed("def new_group(ranks=None): note()\nnew_group(7)")  # another version of torch
    assert frame is not None
    assert joining_of([frame]) is None
    assert joining_of([sys._getframe()]) is None
