"""What a rank that waits outside of all collectives may still call, and when an answer about it is certain."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen import changed, evidence, rank

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program import code_ahead, code_blocks
from frog.observe.diagnose.program.code_ahead import calls_nothing_more
from frog.observe.diagnose.program.evidence import RankEvidence
from frog.observe.diagnose.program.program_diagnosis import diagnose_program

STEP = """\
def finish():
    {finish}
def step(x):
    dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(x)
    else:
        {waits}
    {rest}
{head}
    step(x)
{tail}
"""


@pytest.fixture(autouse=True)
def files_are_read_again() -> None:
    code_blocks.source_of.cache_clear()
    code_ahead._File.of.cache_clear()


def stuck(folder: Path, *, library: bool = False, deadline_s: float | None = None, **parts: str) -> Diagnosis:
    """Diagnose rank 1 in the else branch of `step`, while rank 0 waits in the other one."""
    text = {"finish": "print('done')", "waits": "time.sleep(600)", "rest": "return", "head": "if True:", "tail": ""}
    script = folder / "train.py"
    script.write_text(STEP.format(**(text | parts)))
    stack = [line_of(script, 8, "step", code="time.sleep(600)"), line_of(script, 11, "<module>")]
    line = line_of(script, 8, "step")
    inner = [stack[0], library_line("contextlib.py", "__enter__")] if library else stack[:1]
    ranks = [
        rank(0, ("all_reduce", 8, 4), ("all_reduce", 8, 6), state="running", pending=1),
        rank(1, ("all_reduce", 8, 4), state="running", cpu_busy=False, line=line, stack=[*inner, stack[1]]),
    ]
    seen = evidence(*(of_script(script, one) for one in ranks))
    seen.deadline_s = deadline_s
    return diagnose_program(seen)


def line_of(script: Path, line: int, function: str, code: str = "") -> CodeLine:
    return CodeLine(file=str(script), line=line, function=function, code=code)


def library_line(file: str, function: str) -> CodeLine:
    return CodeLine(file=f"/usr/lib/python3.12/{file}", line=8, function=function)


def of_script(script: Path, one: RankEvidence) -> RankEvidence:
    one.calls = [
        changed(call, line=line_of(script, call.line.line, "step"), callers=(line_of(script, call.line.line, "step"),))
        for call in one.calls
        if call.line is not None
    ]
    return one


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"waits": "lock.acquire()"},
        {"waits": "while not os.path.exists('ready'): time.sleep(1)"},
        {"rest": "finish()"},
        {"tail": "finish()\ndist.destroy_process_group()"},
        {"tail": "def later(): dist.barrier()"},
        {"head": "with torch.no_grad():"},
        {"rest": "print(rank)", "waits": "exit_code = process.wait()"},
    ],
    ids=lambda parts: " ".join(parts.values()) or "plain",
)
def test_branch_is_certain_if_the_waiting_rank_calls_no_collective_any_more(
    tmp_path: Path, parts: dict[str, str]
) -> None:
    found = stuck(tmp_path, **parts)
    assert (found.fault, found.rank, found.line, found.certain) == ("branch", 0, "train.py:6 (step)", True)
    assert found.finding.endswith("which rank 1 never calls: only some ranks pass `if rank == 0:` in line 5")


RETURNS = """\
def step(x):
    dist.all_reduce(x)
    if rank != 0:
        return
    dist.all_reduce(x)
step(x)
time.sleep(600)
"""


def test_return_before_a_call_is_likely_though_the_other_rank_calls_no_collective_any_more(tmp_path: Path) -> None:
    """Another return, or what it stands in, may have led the rank past the call."""
    script = tmp_path / "train.py"
    script.write_text(RETURNS)
    line = line_of(script, 7, "<module>")
    ranks = [
        rank(0, ("all_reduce", 8, 2), ("all_reduce", 8, 5), state="running", pending=1),
        rank(1, ("all_reduce", 8, 2), state="running", cpu_busy=False, line=line, stack=[line]),
    ]
    found = diagnose_program(evidence(*(of_script(script, each) for each in ranks)))
    assert (found.fault, found.certain) == ("branch", False)
    assert found.finding.endswith("which rank 1 never calls: only some ranks pass `if rank != 0: return` in line 3")


@pytest.mark.parametrize(
    "parts",
    [
        {"rest": "dist.barrier()"},
        {"rest": "model(x)"},
        {"rest": "finish()", "finish": "dist.all_reduce(x)"},
        {"rest": "finish()", "finish": "finish() or shards[0]()"},
        {"rest": "import trainer"},
        {"rest": "for batch in loader: print(batch)"},
        {"rest": "rows = [row for row in loader]"},
        {"waits": "dist.all_reduce(read())"},
        {"waits": "with main_process_first(): lock.acquire()"},
        {"head": "for number in range(3):"},
        {"tail": "dist.barrier()"},
        {"tail": "trainer.fit()"},
        {"library": "yes"},
    ],
    ids=lambda parts: " ".join(parts.values()),
)
def test_rank_that_may_still_come_is_likely_to_be_blocked(tmp_path: Path, parts: dict[str, str]) -> None:
    found = stuck(tmp_path, library=bool(parts.pop("library", "")), **parts)
    assert (found.fault, found.rank, found.line, found.certain) == ("blocked", 1, "train.py:8 (step)", False)
    assert "rank 1 was at train.py:8 (step), " in found.finding


@pytest.mark.parametrize(
    ("waits", "deadline_s", "certain"),
    [
        ("time.sleep(600)", 5.0, True),
        ("answer = input('continue? ')", 5.0, True),
        ("time.sleep(3)", 5.0, False),
        ("time.sleep(600)", None, False),
        ("time.sleep(pause)", 5.0, False),
        ("queue.get()", 5.0, False),
    ],
)
def test_long_wait_for_nothing_is_certain(tmp_path: Path, waits: str, deadline_s: float | None, certain: bool) -> None:
    """It kept the others waiting until the deadline, even if it comes later. A queue may wait for the others."""
    found = stuck(tmp_path, waits=waits, deadline_s=deadline_s, rest="dist.all_reduce(x)")
    assert (found.fault, found.rank, found.certain) == ("blocked", 1, certain)


def test_stack_that_does_not_reach_the_program_proves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("time.sleep(600)\n")
    here = line_of(script, 1, "<module>")
    assert calls_nothing_more([library_line("selectors.py", "select"), here])
    assert calls_nothing_more([here, CodeLine(file="<frozen runpy>", line=88, function="_run_code")])
    assert not calls_nothing_more([])
    assert not calls_nothing_more([here, library_line("threading.py", "run")])
    assert not calls_nothing_more([line_of(script, 1, "step")])
    assert not calls_nothing_more([line_of(script, 2, "<module>")])
