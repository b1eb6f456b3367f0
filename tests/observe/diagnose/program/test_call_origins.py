"""Collectives that no line of the program calls: of a thread, a freed object, a signal, the exit."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen import changed, evidence, rank

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program import code_blocks
from frog.observe.diagnose.program.program_diagnosis import diagnose_program

PROGRAM = """\
{starts}
def save(*args):
    dist.all_gather(parts, mine)
def main():
    for step in range(9):
        if {test}:
            drop(step)
        dist.all_reduce(grad)
    dist.barrier()
main()
"""
IN_LOOP, OUT = ("all_reduce", 64, 8), ("barrier", 1, 9)
SAVED = ("all_gather", 12, 3)
MAIN = {8: ((8, "main"), (10, "<module>")), 9: ((9, "main"), (10, "<module>"))}


def diagnosed(
    folder: Path,
    starts: str,
    stack: tuple[tuple[int, str], ...],
    *calls: list[tuple[str, int, int]],
    test: str = "due",
    ended: bool = False,
) -> Diagnosis:
    """Diagnose ranks whose all-gather has a stack of its own, innermost first, and whose last call is pending.

    ended: the last rank has ended instead.
    """
    code_blocks.source_of.cache_clear()
    script = folder / "train.py"
    script.write_text(PROGRAM.format(starts=starts, test=test))
    ranks = [rank(number, *made, pending=1, state="running") for number, made in enumerate(calls)]
    if ended:
        ranks[-1] = rank(len(calls) - 1, *calls[-1], state="ended", exit_code=0)
    for one in ranks:
        for number, call in enumerate(one.calls):
            lines = MAIN.get(call.line.line if call.line else 0, stack)
            places = tuple(CodeLine(file=str(script), line=line, function=function) for line, function in lines)
            one.calls[number] = changed(call, line=places[0], callers=places)
    return diagnose_program(evidence(*ranks))


@pytest.mark.parametrize(
    ("starts", "words"),
    [
        ("Thread(target=self.save).start()", "in a thread of its own, which runs save, and its other threads call"),
        ("pool.submit(save, state)", "in a thread of its own, which runs save"),
        ("atexit.register(save)", "in save, which runs at the exit of the process"),
    ],
)
def test_call_of_a_thread_that_meets_one_of_the_program_has_no_order(tmp_path: Path, starts: str, words: str) -> None:
    found = diagnosed(tmp_path, starts, ((3, "save"),), [IN_LOOP, SAVED, OUT], [IN_LOOP, OUT, SAVED])
    assert (found.fault, found.rank, found.line, found.certain) == ("order", 0, "train.py:3 (save)", False)
    assert f"rank 0 called all_gather {words}" in found.finding
    assert found.advice.startswith("all ranks must call the collectives of a group in one order: ")


def test_hook_that_runs_in_a_thread_of_torch_is_not_called_a_thread_of_the_program(tmp_path: Path) -> None:
    hook = "weight.register_hook(save)"
    found = diagnosed(tmp_path, hook, ((3, "save"),), [IN_LOOP, SAVED, OUT], [IN_LOOP, OUT, SAVED])
    assert "thread" not in found.finding


def test_threads_that_meet_at_the_same_calls_are_not_the_cause(tmp_path: Path) -> None:
    other = ("all_gather", 99, 3)
    found = diagnosed(tmp_path, "Thread(target=save)", ((3, "save"),), [OUT, SAVED, OUT], [OUT, other, OUT])
    assert found.fault == "shape"
    assert "thread" not in found.finding


@pytest.mark.parametrize(
    ("starts", "function", "words"),
    [
        ("", "__del__", "in __del__, when an object was freed at train.py:7 (main): that is when its last reference"),
        ("weakref.finalize(self, save)", "save", "in save, when an object was freed at train.py:7 (main)"),
        ("signal.signal(SIGTERM, save)", "save", "in save, which handles a signal that came at train.py:7 (main)"),
    ],
)
@pytest.mark.parametrize(("test", "fault"), [("due", "order"), ("rank == 0", "branch")])
def test_call_that_interrupts_the_program_names_the_line_at_which_it_came(
    tmp_path: Path, starts: str, function: str, words: str, test: str, fault: str
) -> None:
    stack = ((3, function), (7, "main"), (10, "<module>"))
    found = diagnosed(tmp_path, starts, stack, [IN_LOOP, SAVED], [IN_LOOP, IN_LOOP], test=test)
    assert (found.fault, found.rank, found.certain) == (fault, 0, fault == "branch")
    assert f"rank 0 called {'it' if fault == 'branch' else 'all_gather'} {words}" in found.finding
    assert ("only some ranks pass `if rank == 0:`" in found.finding) is (fault == "branch")


def test_line_that_calls_a_handler_itself_is_an_ordinary_call(tmp_path: Path) -> None:
    stack = ((3, "drop"), (7, "main"), (10, "<module>"))
    found = diagnosed(tmp_path, "signal.signal(SIGTERM, drop)", stack, [IN_LOOP, SAVED], [IN_LOOP, IN_LOOP])
    assert "signal" not in found.finding


def test_wait_that_a_freed_object_began_for_a_rank_that_has_ended_says_so(tmp_path: Path) -> None:
    stack = ((3, "__del__"), (7, "main"), (10, "<module>"))
    found = diagnosed(tmp_path, "", stack, [IN_LOOP, SAVED], [IN_LOOP], ended=True)
    assert (found.fault, found.rank) == ("branch", 0)
    assert "; rank 0 called all_gather in __del__, when an object was freed at train.py:7 (main)" in found.finding
