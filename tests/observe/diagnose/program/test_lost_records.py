"""Ranks whose record is lost or has no lines, and errors in logs that did not end their rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from seen import changed, evidence, failed, rank

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.known_errors.explain import explain_lines
from frog.observe.diagnose.known_errors.lines import LogLine
from frog.observe.diagnose.program import code_blocks
from frog.observe.diagnose.program.evidence import Group, RankEvidence
from frog.observe.diagnose.program.log_rules import with_log
from frog.observe.diagnose.program.program_diagnosis import diagnose_program
from frog.observe.diagnose.program.program_logs import _is_end, _went_on

MISMATCH = ("op.preamble.length <= op.nbytes", "train.log")
TRACE = """\
Traceback (most recent call last):
  File "/home/me/train.py", line {line}, in <module>
    work()
{kind}: negative dimension -1"""
RESUME = """\
for _ in range(start, STEPS):
    dist.all_reduce(grad)
dist.all_reduce(total)
"""


@pytest.fixture(autouse=True)
def files_are_read_again() -> None:
    code_blocks.source_of.cache_clear()


def written(folder: Path, text: str, *ranks: RankEvidence) -> Path:
    """Write a script, and move the calls of ranks to its lines."""
    script = folder / "train.py"
    script.write_text(text)
    for one in ranks:
        places = [here(script, call.line.line if call.line else 0) for call in one.calls]
        one.calls = [changed(call, line=place, callers=(place,)) for call, place in zip(one.calls, places, strict=True)]
    return script


def here(script: Path, line: int, function: str = "<module>") -> CodeLine:
    return CodeLine(file=str(script), line=line, function=function)


def crashed(number: int, script: Path, *lines: tuple[int, str], world: int = 2) -> RankEvidence:
    """Return a rank that gloo ended: only where it was is known. lines: innermost first."""
    stack = [here(script, line, function) for line, function in lines]
    return rank(number, world=world, mismatch=MISMATCH, line=stack[0], stack=stack, exit_code=-6, state="running")


def test_rank_that_crashed_where_one_side_is_makes_the_majority(tmp_path: Path) -> None:
    """Rank 1 runs more rounds; ranks 0 and 2 are after the loop, and the record of rank 0 is lost."""
    grad, total = ("all_reduce", 40, 2), ("all_reduce", 3, 3)
    ranks = [rank(1, grad, grad, grad, world=3, pending=1), rank(2, grad, grad, total, world=3, pending=1)]
    script = written(tmp_path, RESUME, *ranks)
    for line, odd in ((3, 1), (2, 2)):
        found = diagnose_program(evidence(crashed(0, script, (line, "<module>"), world=3), *ranks, hung=False))
        assert (found.fault, found.rank) == ("batches", odd)


def test_calls_without_lines_are_taken_for_those_of_the_last_one_if_they_are_alike(tmp_path: Path) -> None:
    waits = rank(1, *[("all_reduce", 40, 2)] * 3, pending=1)
    script = written(tmp_path, RESUME, waits)
    waits.calls[:-1] = [changed(call, line=None, callers=()) for call in waits.calls[:-1]]
    found = diagnose_program(evidence(crashed(0, script, (3, "<module>")), waits, hung=False))
    assert (found.fault, found.rank) == ("batches", 0)
    assert "rank 0 has left the loop `for _ in range(start, STEPS):` in line 1" in found.finding


@pytest.mark.parametrize(("op", "fault"), [("all_to_all", "shape"), ("all_reduce", "skipped")])
def test_all_to_all_that_the_other_rank_has_completed_has_other_splits(tmp_path: Path, op: str, fault: str) -> None:
    text = "for step in range(8):\n    dist.all_to_all_single(out, rows)\n    dist.all_reduce(loss)\n"
    one = rank(0, *[(op, 40, 2), ("all_reduce", 1, 3)] * 3, pending=1)
    script = written(tmp_path, text, one)
    found = diagnose_program(evidence(one, crashed(1, script, (2, "<module>")), hung=False))
    assert (found.fault, found.rank, found.line) == (fault, 1, "train.py:2")
    assert ("split sizes differ" in found.finding) == (fault == "shape")


HEADS = """\
def gather(x):
    dist.all_gather(parts, x)
for step in range(4):
    gather(backbone)
    heads = [gather(head) for _ in range(count)]
"""


@pytest.mark.parametrize("head", [8, 32])
def test_loop_of_one_size_at_a_line_of_several_has_other_rounds(tmp_path: Path, head: int) -> None:
    one = rank(0, *[("all_gather", 32, 4), ("all_gather", head, 5), ("all_gather", head, 5)] * 2, pending=1)
    script = written(tmp_path, HEADS, one)
    inner = here(script, 2, "gather")
    one.calls = [changed(call, line=inner, callers=(inner, *call.callers)) for call in one.calls]
    lost = crashed(1, script, (2, "gather"), (5, "<listcomp>"), (5, "<module>"))
    found = diagnose_program(evidence(one, lost, hung=False))
    assert (found.fault, found.rank) == ("batches" if head == 8 else "shape", 1)
    assert ("in the loop `for _ in range(count)` in line 5" in found.finding) == (head == 8)


GROUPS = """\
def shard():
    dist.all_reduce(x, group=a)
def replicate():
    dist.broadcast(y, 0, group=b)
for step in range(8):
    if eager:
        replicate()
        {first}()
    else:
        shard()
        replicate()
"""


@pytest.mark.parametrize(("first", "fault"), [("shard", "order"), ("update", "skipped")])
def test_call_of_another_group_that_a_rank_still_makes_is_in_another_order(
    tmp_path: Path, first: str, fault: str
) -> None:
    step, eager = [("all_reduce", 12, 10), ("broadcast", 7, 11)], ("broadcast", 7, 7)
    ranks = [rank(n, *step, *step, step[0], world=3, pending=1) for n in (0, 1)]
    ranks.append(rank(2, *step, *step, eager, world=3, pending=1))
    script = written(tmp_path, GROUPS.format(first=first), *ranks)
    for one in ranks:
        numbers: dict[str, int] = {}
        for at, call in enumerate(one.calls):
            numbers[call.op] = numbers.get(call.op, 0) + 1
            group = Group((0, 1, 2), "1" if call.op == "all_reduce" else "2")
            inner = here(script, 2, "shard") if call.op == "all_reduce" else here(script, 4, "replicate")
            places = (inner, *call.callers)
            one.calls[at] = replace(call, group=group, seq=numbers[call.op], line=inner, callers=places)
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank) == (fault, 2)
    assert (found.line, found.peer_line) == ("train.py:4 (replicate)", "train.py:2 (shard)")


def test_error_in_a_log_before_a_later_collective_was_caught() -> None:
    later = rank(1, ("all_reduce", 4, 20), pending=1, state="running", exit_code=-15)
    error = replace(failed("RuntimeError", "negative dimension -1", 12), frames=(CodeLine(file="train.py", line=12),))
    assert _went_on(later, error)
    assert not _went_on(replace(later, exit_code=1), error)
    assert later.calls[0].line is not None
    assert not _went_on(later, replace(error, frames=(later.calls[0].line,)))


@pytest.mark.parametrize(("line", "is_end"), [(36, True), (12, False)])
def test_error_of_the_same_type_at_another_line_is_not_the_one_that_ended_a_rank(line: int, is_end: bool) -> None:
    end = failed("RuntimeError", "[pair.cc:553] Connection closed by peer", 36)
    assert _is_end(failed("RuntimeError", "Connection closed by peer", line), end) == is_end
    assert not _is_end(failed("KeyError", "step", 36), end)
    assert not _is_end(failed("KeyError", "step", 36), None)


def test_rank_that_survived_an_error_skipped_the_call_before_its_own() -> None:
    """It had never called that one before, so the error alone tells: likely, not certain."""
    grad, total = ("all_reduce", 30, 36), ("all_reduce", 2, 19)
    left = rank(1, grad, grad, grad, pending=1, caught=[failed("RuntimeError", "negative dimension -1", 12)])
    found = diagnose_program(evidence(rank(0, grad, grad, total, grad, pending=2), left))
    assert (found.fault, found.rank, found.certain) == ("skipped", 1, False)
    assert "after an error that its log shows: RuntimeError: negative dimension -1" in found.finding


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize(
    "text", ["epoch 1: non-finite loss; skipping this batch", TRACE.format(kind="RuntimeError", line=12)]
)
def test_line_of_a_log_that_ended_no_rank_does_not_replace_what_the_records_show(text: str, caught: bool) -> None:
    step, total = ("all_reduce", 7, 29), ("all_reduce", 3, 33)
    ranks = [rank(0, step, step, total, pending=1), rank(1, step, step, step, pending=1)]
    if caught:
        ranks[0].caught = [failed("RuntimeError", "negative dimension -1", 12)]
    seen = evidence(*ranks)
    seen.ended_code = 1
    lines = [LogLine(number, line, rank=0) for number, line in enumerate(text.split("\n"), 1)]
    seen.explanation = explain_lines(lines)
    found = with_log(seen, diagnose_program(seen))
    is_ending = "Traceback" in text and not caught
    assert (found.fault.startswith(("raise", "exception"))) == is_ending
    assert found.also or is_ending


FILES = """\
for name in list_files():
    dist.broadcast(weights[name], src=0)
dist.all_reduce(total)
"""


@pytest.mark.parametrize(
    ("sizes", "fault", "odd"),
    [((40, 12), "order", 1), ((40, 40, 12), "shape", 0), ((12,), "shape", 1)],
    ids=["files", "last", "one"],
)
def test_loop_whose_rounds_all_have_other_sizes_has_another_order_on_the_crashed_rank(
    tmp_path: Path, sizes: tuple[int, ...], fault: str, odd: int
) -> None:
    """Of equal rounds before, the last one is probably smaller, as an uneven batch is."""
    waits = rank(0, ("all_reduce", 4, 3), *(("broadcast", size, 2) for size in sizes), pending=1)
    script = written(tmp_path, FILES, waits)
    found = diagnose_program(evidence(crashed(1, script, (2, "<module>")), waits, hung=False))
    assert (found.fault, found.rank, found.line, found.certain) == (fault, odd, "train.py:2", False)
    loop = "the loop `for name in list_files():` in line 1 calls collectives of several sizes"
    assert (loop in found.finding) == (fault == "order")


SHAMPOO = """\
def update(parts):
    dist.all_gather(blocks, parts)
for group in groups:
    if all(p.grad is None for p in group):
        continue
    update([direction(p) for p in group])
"""


def test_loop_that_calls_the_function_of_a_collective_tells_what_leaves_out_a_call(tmp_path: Path) -> None:
    sizes = (21, 15) * 2
    waits = rank(0, *(("all_gather", size, 2) for size in (*sizes, 21)), pending=1)
    script = written(tmp_path, SHAMPOO, waits)
    frames = (here(script, 2, "update"), here(script, 6))
    waits.calls = [changed(call, line=frames[0], callers=frames) for call in waits.calls]
    found = diagnose_program(evidence(crashed(1, script, (2, "update"), (6, "<module>")), waits, hung=False))
    assert (found.fault, found.line) == ("order", "train.py:2 (update)")
    assert "the loop `for group in groups:` in line 3 calls collectives of several sizes: probably" in found.finding
    assert "by `if all(p.grad is None for p in group): continue` in line 4" in found.finding
