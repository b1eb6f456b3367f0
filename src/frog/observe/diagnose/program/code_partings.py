"""Where two ranks part in the source: which loop or branch holds the line of one rank and not that of the other.

Two ranks that ran the same code up to a collective part in one function: there, one of them is inside a block that the
other has left or never entered. That block, not the collective, is what to look at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import NamedTuple

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.assigned_values import ProgramFile
from frog.observe.diagnose.program.code_ahead import HARMLESS
from frog.observe.diagnose.program.code_blocks import (
    RANK_TEST,
    Block,
    Source,
    blocks_around,
    called_on_other_sides,
    calls_in_order,
    function_around,
    has_counterpart,
    is_fixed,
    is_readable,
    source_of,
    text_of,
    yields,
)
from frog.observe.diagnose.program.evidence import Call

_OF_ALL = re.compile(r"is_initialized|is_available|world_size|__name__|is_distributed|use_ddp|TYPE_CHECKING")
"""Tests that all ranks pass, or none."""
_ANY = re.compile("")
_COMMUNICATES = re.compile(r"reduce|gather|scatter|broadcast|barrier|all_to_all|send|recv|sync")


# ---- a test of the rank around a line --------------------------------------------------------------------------------


def rank_branch(line: CodeLine | None) -> str | None:
    """Return "`if rank == 0:` in line 12" if a test of the rank encloses a line of a program, else None."""
    branch = rank_block(line)
    return str(branch) if branch is not None else None


class Guard(NamedTuple):
    """A test of the rank around a call, or around a line that led to it."""

    block: Block
    text: str
    is_use: bool = False
    """True if it is around the only uses of the function that makes the call: see code_uses.py."""

    def __str__(self) -> str:
        return self.text

    @property
    def is_proof(self) -> bool:
        """True if the call is inside of the test, and no test of the other ranks may hold theirs.

        A return before it may have another one behind it.
        """
        return self.block.kind != "return" and not self.is_use and called_on_other_sides(self.block) <= HARMLESS

    @property
    def is_shared(self) -> bool:
        """True if the other ranks have their own line for the call: the test does not tell who makes it."""
        return not self.is_use and has_counterpart(self.block)


def call_branch(call: Call, callers: Iterable[int], others: list[Call], before: Iterable[Call] = ()) -> Guard | None:
    """Return the test of the rank that encloses a call, or a line that led to it.

    callers: the ranks that made it. others: all calls of the ranks that did not. A test around an outer line counts
    only if no call of theirs came from its block; if their records have no stacks, only if it names the one caller.
    before: earlier calls of a caller in this group. A test that it passed before, when the others came too, explains
    nothing: they call it from another line.
    """
    inner = rank_block(call.line)
    passed = [frame for each in before if each.done for frame in stack_of(each)]
    own = Guard(inner, str(inner)) if inner is not None and not any(map(inner.holds, passed)) else None
    if own is not None and not own.is_shared:
        return own
    came = [frame for other in others for frame in other.callers]
    for frame in call.callers:
        branch = rank_block(frame)
        if branch is None or branch == inner or any(branch.holds(each) for each in came):
            continue
        if inner is not None and any(branch.holds(each) for each in passed):
            continue
        if came or branch.names(list(callers)):
            return Guard(branch, f"{branch} of {PurePath(frame.file).name}")
    return own


def rank_block(line: CodeLine | None) -> Block | None:
    """Return the innermost block around a line that a test of the rank guards."""
    if line is None or not line.file.endswith(".py"):
        return None
    around = [block for block in source_of(line.file).blocks if block.tests_rank and block.holds(line)]
    around += _returns_before(line, RANK_TEST)
    return max(around, key=lambda block: block.first, default=None)


# ---- where two ranks part --------------------------------------------------------------------------------------------


def stack_of(call: Call) -> tuple[CodeLine, ...]:
    """Return the lines of the user's code that led to a call, innermost first."""
    if call.callers:
        return call.callers
    return (call.line,) if call.line is not None else ()


def parting_lines(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> tuple[CodeLine, CodeLine] | None:
    """Return the two lines of one function at which the stacks of two ranks part; None if they do not show it.

    one, other: lines that led to a call, innermost first. Long stacks may lack their outermost lines.
    """
    left, right = list(reversed(one)), list(reversed(other))
    starts = [
        (at + there, at, there)
        for at in range(len(left))
        for there in range(len(right))
        if _function(left[at]) == _function(right[there])
    ]
    if not starts:
        return None
    _, at, there = min(starts)
    for mine, others in zip(left[at:], right[there:], strict=False):
        if _function(mine) != _function(others):
            return None
        if mine.line != others.line:
            return mine, others
    return None


def _function(line: CodeLine) -> tuple[str, str, int]:
    """Tell functions apart, also methods of one name: by the first line, where the source is known."""
    around = function_around(source_of(line.file), line.line) if is_readable(line) else None
    return line.file, line.function, around.first if around is not None else 0


@dataclass(frozen=True)
class Parting:
    """A block that one rank is in, and that another has left or did not enter."""

    block: Block
    was_common: bool
    """True if both made their last common call in it."""
    is_deeper: bool
    """True if it is in a function that the other rank may have called too, but has left."""
    is_past: bool = False
    """True if the other rank is at a later line of the function, or has left it."""
    is_again: bool = False
    """True if the other rank is in it, too, by another call of its function."""
    around: tuple[Block, ...] = ()
    """For a loop, the loops around it that the other rank has left too, innermost first."""
    besides: tuple[Block, ...] = ()
    """For a test, others around it that the other rank may not have passed either."""

    @property
    def weight(self) -> float:
        """Order of what it explains: the lower, the more."""
        if self.block.kind == "loop" and self.was_common and is_fixed(self.block):
            return 4.7
        if self.block.kind == "loop" and self.was_common:
            return 0 if self.is_past and not self.is_again else 3
        if self.block.kind == "loop" or self.block.is_counted:
            return 6 if self.block.is_counted else 5
        if self.block.kind == "try":
            return 4.5
        if self.block.kind in ("if", "else") and ProgramFile.of(self.block.file).is_equal_test(self.block.line):
            return 7
        return 4 if self.is_deeper else 1 if self.block.kind == "except" else 2


def parting_of(one: Sequence[CodeLine], other: Sequence[CodeLine], last: Sequence[CodeLine]) -> Parting | None:
    """Return the block that explains best why one rank is where the other is not; None if no block does.

    one, other: the lines that led to where the ranks are. last: those of the last call that both made: a branch that
    already held it is not where they part.
    """
    lines = parting_lines(one, other)
    within = _parting_in_a_line(one, other) if lines is None else None
    lines = lines or within
    if lines is None or not is_readable(lines[0]):
        return None
    here, there = lines
    partings = []
    for number, frame in enumerate(one[: list(one).index(here) + 1]):
        for block in [*_returns_before(frame), *blocks_around(frame)]:
            common = block.kind != "cache" and _held(block, last, one, number)
            deeper = frame is not here
            if not _is_in(block, one, number):
                continue
            past = there.line > (here.line if deeper else block.last) or (deeper and within is not None)
            past = past or _has_come_round(block if not deeper else None, here, there, last)
            if not deeper and _is_in(block, other, list(other).index(there)):
                continue
            if block.kind == "loop" and not (common or past):  # the other rank may yet come to it
                continue
            if block.kind == "loop" and deeper and yields(block):  # the other rank has not left it: it waits there
                continue
            if block.kind != "loop" and (common or has_counterpart(block)):
                continue
            if (deeper and _OF_ALL.search(block.text)) or (block.kind == "return" and not deeper):
                continue
            partings.append(Parting(block, common, deeper, past, deeper and holds_stack(block, other)))
    best = min(reversed(_that_differ(partings)), key=lambda parting: parting.weight, default=None)
    return _with_loops_around(_with_other_tests(best, partings), partings)


def _has_come_round(block: Block | None, here: CodeLine, there: CodeLine, last: Sequence[CodeLine]) -> bool:
    """True if the other rank is in the next round of a loop around both: it came past the line where this one is.

    last: the lines of the last call that both made, which must be at or after the line of the other rank, and before
    that of this one. block: what must begin after it, too; None for a block in a function that this line calls.
    """
    before = next((frame for frame in last if _function(frame) == _function(here)), None)
    if before is None or not there.line <= before.line < (here.line if block is None else block.first):
        return False
    return any(each.kind == "loop" and each.holds(there) and each.holds(before) for each in blocks_around(here))


def _is_in(block: Block, stack: Sequence[CodeLine], number: int) -> bool:
    """True if a line of a stack is in a block. The head of `for x in load():` calls `load` once, before the loop."""
    line, source = stack[number], source_of(block.file)
    if not block.holds(line):
        return False
    if number > 0 and stack[number - 1].function in block.besides:
        return False
    if number == 0 and any(map(_COMMUNICATES.search, block.besides)):
        return False
    is_head = block.kind == "loop" and line.line == block.line and number > 0
    made_once = block.function in source.makers and bool(block.function)
    return not (is_head and made_once and stack[number - 1].function == block.function)


def _held(block: Block, last: Sequence[CodeLine], stack: Sequence[CodeLine], number: int) -> bool:
    """True if a block that holds a line of a stack held an earlier one. Of a branch: if the same lines led to it."""
    return any(
        _is_in(block, last, at) and (block.kind == "loop" or _led_alike(last[at + 1 :], stack[number + 1 :]))
        for at in range(len(last))
    )


def _led_alike(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> bool:
    """True if lines that led to two calls may be the same: long stacks lack their outermost lines."""
    return all((a.file, a.line) == (b.file, b.line) for a, b in zip(one, other, strict=False))


def holds_stack(block: Block, stack: Sequence[CodeLine]) -> bool:
    """True if one of the lines of a stack, innermost first, is in a block."""
    return any(_is_in(block, stack, number) for number in range(len(stack)))


def _that_differ(found: list[Parting]) -> list[Parting]:
    """Leave out loops of a fixed number of rounds if loops around them may differ."""
    loops = [parting for parting in found if parting.block.kind == "loop" and parting.was_common]
    free = [parting for parting in loops if not is_fixed(parting.block)]
    return [parting for parting in found if parting not in loops or parting in free] if free else found


def rank_test_between(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> Block | None:
    """Return the block that a test of the rank guards where two stacks part, if it holds only the first of them."""
    lines = parting_lines(one, other)
    block = rank_block(lines[0]) if lines is not None else None
    return block if block is not None and not (holds_stack(block, other) or has_counterpart(block)) else None


def _parting_in_a_line(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> tuple[CodeLine, CodeLine] | None:
    """Return the line of both at which the first rank is in a call that comes before the call of the other one.

    As of `respond(run(request))`: a rank in `respond` has left `run`.
    """
    mine, others = ([*reversed(stack)] for stack in (one, other))
    for at, (left, right) in enumerate(zip(mine[1:], others[1:], strict=False)):
        if (mine[at].file, mine[at].line) != (others[at].file, others[at].line):
            return None
        if _function(left) != _function(right):
            names = calls_in_order(mine[at])
            is_known = names.count(left.function) == names.count(right.function) == 1
            is_before = is_known and names.index(left.function) < names.index(right.function)
            return (mine[at], others[at]) if is_before else None
    return None


def _with_other_tests(parting: Parting | None, found: list[Parting]) -> Parting | None:
    """Add the tests by which the other rank may have left out the call as well: an outer one, in another function."""
    if parting is None or not parting.is_deeper or parting.block.kind not in ("if", "else"):
        return parting
    others = [
        each.block
        for each in found
        if each.block != parting.block and each.block.kind in ("if", "else")
        if each.weight == parting.weight or (each.block.is_counted and not _is_of_constants(each.block))
    ]
    return replace(parting, besides=tuple(others))


def fetches_next(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> Block | None:
    """Return the loop in a round of which the first rank is, while the other one is in the iterator of that loop.

    As in a generator that calls a barrier at the end of an epoch. None if it is not so.
    """
    lines = parting_lines(one, other)
    if lines is None or not is_readable(lines[0]):
        return None
    within = list(other)[: list(other).index(lines[1])]
    heads = [block for block in blocks_around(lines[0]) if block.kind == "loop" and block.line == lines[1].line]
    makers = source_of(lines[0].file).makers
    return heads[-1] if heads and within and within[-1].function not in makers - {"__iter__", "__next__"} else None


def other_tests(parting: Parting) -> str:
    """Return words about the other tests that only one rank may have passed; empty without any."""
    return "".join(f", or {block}" for block in parting.besides[:2])


def _with_loops_around(parting: Parting | None, found: list[Parting]) -> Parting | None:
    if parting is None or parting.block.kind != "loop":
        return parting
    loop = parting.block
    around = [
        each.block
        for each in reversed(_that_differ(found))
        if each.was_common and each.block.kind == "loop" and each.is_deeper == parting.is_deeper
        if each.block.file == loop.file and each.block.first < loop.first <= loop.last <= each.block.last
    ]
    return replace(parting, around=tuple(around))


def branch_past(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> Block | None:
    """Return the innermost branch around a call that holds none of the lines that led to another one."""
    blocks = [block for frame in one[:2] if is_readable(frame) for block in reversed(blocks_around(frame))]
    branches = [block for block in blocks if block.kind in ("if", "else") and not _OF_ALL.search(block.text)]
    return next((block for block in branches if not any(block.holds(frame) for frame in other)), None)


def handler_past(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> Block | None:
    """Return the innermost `try` from which an error before a call may have led to another one; None without any.

    one, other: the lines that led to the calls, innermost first. A `try` that holds both explains it only if the other
    call is at an earlier line, as of a loop that tries again.
    """
    lines = parting_lines(one, other)
    again = lines is None or lines[1].line <= lines[0].line
    blocks = (block for frame in one if is_readable(frame) for block in reversed(blocks_around(frame)))
    return next((block for block in blocks if block.kind == "try" and (again or not holds_stack(block, other))), None)


def comes_later(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> bool:
    """True if a rank at one call still calls, in the same block, the function that made the other call: another order.

    one, other: the lines that led to the calls, innermost first.
    """
    lines = parting_lines(one, other)
    if lines is None or not is_readable(lines[0]):
        return False
    inner = list(other).index(lines[1]) - 1
    name = other[inner].function if inner >= 0 else _called_at(lines[1])
    branches = [block for block in blocks_around(lines[0]) if block.kind in ("if", "else")]
    last = branches[-1].last if branches else 0
    rest = source_of(lines[0].file).lines[lines[0].line : last]
    return bool(name) and any(re.search(rf"\b{re.escape(name)}\(", text) for text in rest)


def _called_at(line: CodeLine) -> str:
    """Return the function of torch.distributed that a line calls; empty if it calls none."""
    match = re.search(r"\b(\w*(?:reduce|gather|scatter|broadcast|barrier|all_to_all)\w*)\(", text_of(line))
    return match[1] if match is not None else ""


def _returns_before(line: CodeLine, tests: re.Pattern[str] = _ANY) -> list[Block]:
    """Return the rest of a function from a line on, as a block that the conditional returns before it leave out.

    tests: what the text of such a condition has.
    """
    source = source_of(line.file) if line.file.endswith(".py") else Source()
    function = function_around(source, line.line)
    if function is None or not is_readable(line):
        return []
    inner = [each for each in source.functions if function.first < each.first <= function.last]
    ways = [
        jump
        for jump in source.returns
        if function.first < jump.line < line.line
        and not any(each.first <= jump.line <= each.last for each in inner)
        and not _OF_ALL.search(jump.test)
        and tests.search(jump.test)
    ]
    if not ways:
        return []
    text = "` or `".join(f"{jump.test} return" for jump in ways[-2:])
    first = ways[-1].line + 1
    return [Block("return", text, ways[-1].shown_line, line.file, first, function.last, function=function.name)]


def returns_past(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> Block | None:
    """Return the conditional returns before a call by which a rank may have ended after another; None without any.

    one, other: the lines that led to the calls, innermost first.
    """
    lines = parting_lines(one, other)
    if lines is None or lines[1].line >= lines[0].line:
        return None
    return next((block for block in _returns_before(lines[0]) if lines[1].line < block.line), None)


# ---- the statements by which a rank leaves out a call ----------------------------------------------------------------


class SkippedRound(NamedTuple):
    """A loop in a round of which a rank may have left out an inner loop."""

    loop: Block
    ways: str
    """The statements by which it does."""
    holds_both: bool
    """True if both ranks are in the loop; False if one has left it."""


def skipped_round(one: Sequence[CodeLine], other: Sequence[CodeLine], inner: Block) -> SkippedRound | None:
    """Return the loop around one that the other rank did not enter: it has left that, or left out a part of a round.

    one, other: the lines that led to their calls, innermost first. None if both are in it and no `continue` or handler
    stands before the inner loop.
    """
    number = next((number for number, frame in enumerate(one) if _is_in(inner, one, number)), None)
    if inner.kind != "loop" or number is None or not is_readable(one[number]):
        return None
    loops = [block for block in blocks_around(one[number]) if block.kind == "loop" and block.first < inner.first]
    loops = [loop for loop in loops if loop.last >= inner.last]
    if not loops and parting_lines(one, other) is not None:  # the loop around the call of the function that has it
        frames = [frame for frame in one[number + 1 :] if is_readable(frame)]
        loops = [block for frame in frames[:1] for block in blocks_around(frame) if block.kind == "loop"]
    for loop in loops[-1:]:
        at = next(frame for frame in one[number:] if loop.holds(frame))
        ways = [way for way in exits_past(at, loop) if way.first < at.line]
        text = " or ".join(str(way) for way in ways if not way.text.endswith((" break", " return")))
        both = holds_stack(loop, other)
        return SkippedRound(loop, text, both) if text or not both else None
    return None


def tries_again(loop: Block, stack: Sequence[CodeLine]) -> Block | None:
    """Return the handler after which a loop tries again a call that otherwise leaves it; None if it does not.

    stack: the lines that led to a call in the loop, innermost first.
    """
    number = next((number for number, frame in enumerate(stack) if _is_in(loop, stack, number)), None)
    jumps = [jump for jump in source_of(loop.file).jumps if jump.loop == loop.line]
    for jump in jumps if number is not None else ():
        until = jump.until if jump.word == "" else jump.shown_line - 1
        leaves = any(way.word in ("return", "break") and jump.line <= way.line <= until for way in jumps)
        is_handler = jump.word in ("", "continue") and jump.test.startswith("except")
        if is_handler and leaves and jump.line <= stack[number or 0].line <= until:
            return Block("except", jump.test, jump.shown_line, loop.file, jump.line, jump.line)
    return None


def may_leave_out(stack: Sequence[CodeLine], since: int) -> bool:
    """True if a rank may come past a line from an earlier one of its function, into another round.

    stack: the line and those that led to it. since: the earlier line. A `continue`, a `break` or a handler of errors
    may also stand before that.
    """
    line = stack[0]
    if any(block.line > since for block in _returns_before(line)):
        return True
    return any(way.first < line.line for way in exits_past(line)) or _is_tried_in_a_loop(stack)


def _is_tried_in_a_loop(stack: Sequence[CodeLine]) -> bool:
    """True if an error in a call may lead to the next round of a loop: its handler continues with that one."""
    was_tried = False
    for frame in stack:
        blocks = blocks_around(frame)
        tries, loops = ([block for block in blocks if block.kind == kind] for kind in ("try", "loop"))
        if (was_tried and loops) or any(a.first < b.first and b.last <= a.last for a in loops for b in tries):
            return True
        was_tried = was_tried or bool(tries)
    return False


def ways_past(line: CodeLine, loop: Block | None = None) -> str:
    """Return the statements with which a rank leaves a loop, or a round of it, before a line; empty if there are none.

    loop: a loop around the line (default: the innermost).
    """
    return " or ".join(map(str, exits_past(line, loop)))


def exits_past(line: CodeLine, loop: Block | None = None) -> list[Block]:
    """Return the same statements, each with the test right around it, as blocks of one line."""
    loops = [block for block in blocks_around(line) if block.kind == "loop"]
    chosen = loop if loop is not None else loops[-1] if loops else None
    if chosen is None:
        return []
    jumps = [
        jump
        for jump in source_of(line.file).jumps
        if jump.loop == chosen.line and (jump.word not in ("continue", "") or jump.line < line.line <= jump.until)
    ]
    return [
        Block("if", f"{jump.test} {jump.word}".strip(), jump.shown_line, line.file, jump.line, jump.line)
        for jump in jumps[:3]
    ]


def ways_out(loop: Block, stack: Sequence[CodeLine]) -> str:
    """Return the statements with which a rank leaves a loop, or a round of it, before a call; empty without any.

    stack: the lines that led to the call in the loop, innermost first.
    """
    return " or ".join(map(str, exits_of(loop, stack)))


def ends_early(loop: Block) -> str | None:
    """Return `all` or `any` if a loop is what that goes through, so that it ends with the first item that decides."""
    text = text_of(CodeLine(file=loop.file, line=loop.line))
    match = re.search(rf"\b(all|any)\(.*\b{re.escape(loop.text)}", text) if not loop.text.endswith(":") else None
    return match[1] if match is not None else None


def exits_of(loop: Block, stack: Sequence[CodeLine]) -> list[Block]:
    """Return the same statements, each with the test right around it, as blocks of one line."""
    number = next((number for number, frame in enumerate(stack) if _is_in(loop, stack, number)), None)
    return exits_past(stack[number], loop) if number is not None else []


def tests_before(loop: Block, stack: Sequence[CodeLine]) -> str:
    """Return the tests between a loop and a call in it, by which a round of the loop leaves out the call."""
    number = next((number for number, frame in enumerate(stack) if _is_in(loop, stack, number)), -1)
    tests = []
    for at in reversed(range(number + 1)):
        for block in [*(_returns_before(stack[at]) if at < number else []), *blocks_around(stack[at])]:
            is_test = block.kind in ("if", "else", "return", "cache") and not _is_of_constants(block)
            outside = at == number and not (loop.first <= block.first and block.last <= loop.last)
            if is_test and not outside and not _OF_ALL.search(block.text) and _is_in(block, stack, at):
                tests.append(str(block))
    return " or ".join(tests[:3])


_OF_SETTING = re.compile(r"\b\w+\.[a-z_]\w*")


def _is_of_constants(block: Block) -> bool:
    """True if ranks in one round of a loop agree on a test whatever their settings are."""
    return block.is_counted and not _OF_SETTING.search(block.text)


def loop_around(stack: Sequence[CodeLine]) -> tuple[Block, CodeLine] | None:
    """Return the innermost loop in which a call was made, and the line in it that led to the call; None without one.

    stack: the lines that led to the call, innermost first. A comprehension in another argument of a line is none.
    """
    for number, frame in enumerate(stack):
        loops = [block for block in blocks_around(frame) if block.kind == "loop"] if is_readable(frame) else []
        around = [loop for loop in loops if _is_in(loop, stack, number)]
        if around:
            return around[-1], frame
    return None


def tests_in_loop(line: CodeLine, loop: Block) -> str:
    """Return the tests by which a rank leaves out a line in a round of a loop around it; empty without any."""
    branches = [
        str(block)
        for block in blocks_around(line)
        if block.kind in ("if", "else") and not block.is_counted and not _OF_ALL.search(block.text)
        if loop.first <= block.first and block.last <= loop.last and block != loop
    ]
    skips = [
        f"`{jump.test} continue` in line {jump.shown_line}"
        for jump in source_of(line.file).jumps
        if jump.loop == loop.line and jump.word == "continue" and jump.line < line.line and jump.test
    ]
    return " or ".join([*branches, *skips][:3])


def backward_line(stack: Sequence[CodeLine]) -> CodeLine | None:
    """Return the line with `backward` that led to a call in a hook of a gradient; None if none did."""
    return next((frame for frame in stack[1:] if is_readable(frame) and ".backward(" in text_of(frame)), None)
