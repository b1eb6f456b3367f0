"""What takes a rank's time or memory, or keeps it waiting, besides its own lines."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType

import pytest
from seen import at, changed, evidence, failed, rank

from frog.core.runs.observed import CodeLine, WorkerStack, read_rank_observed
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence
from frog.observe.diagnose.program.program_diagnosis import diagnose_program
from frog.observe.hook.frog_observer import crashes
from frog.observe.hook.frog_observer.causes import Causes, Memory

STEP = ("all_reduce", 5, 8)


def with_slow_rank(**causes: int) -> Evidence:
    """Return a program in which rank 1 comes late each time."""
    ranks = [rank(n, *[STEP] * 20, state="ended") for n in (0, 1)]
    ranks[1].calls = [changed(call, created_ns=(call.created_ns or 0) + 3 * 10**8) for call in ranks[1].calls]
    for one in ranks:
        one.num_beats, one.thread = 20, "metrics"
    ranks[1].causes = dict(causes)
    return evidence(*ranks, hung=False)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("compile", "torch.compile was compiling at 9 of 20 looks"),
        ("loader", "it waited for its DataLoader at 9 of 20 looks"),
        ("checkpoint", "it was saving a checkpoint"),
        ("gc", "Python's garbage collection took the time"),
        ("thread", "its thread metrics computed"),
        ("gil", "a call kept Python's lock (GIL)"),
    ],
)
def test_cause_of_a_slow_rank_is_named(cause: str, words: str) -> None:
    found = diagnose_program(with_slow_rank(**{cause: 9}))
    assert (found.fault, found.rank) == ("slow", 1)
    assert words in found.finding


def test_cause_that_other_ranks_have_as_often_is_not_named() -> None:
    program = with_slow_rank(loader=9)
    program.ranks[0].causes = {"loader": 8}
    assert "DataLoader" not in diagnose_program(program).finding
    assert "DataLoader" not in diagnose_program(with_slow_rank(loader=2)).finding


def frame_in(file: str, function: str = "run") -> FrameType:
    names: dict[str, FrameType] = {}
    exec(compile(f"def {function}():\n    note(sys._getframe())\n{function}()", file, "exec"),
         {"note": lambda frame: names.update(found=frame), "sys": sys})  # fmt: skip
    return names["found"]


@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("/x/torch/_inductor/compile_fx.py", "compile"),
        ("/x/torch/_dynamo/eval_frame.py", None),  # runs code that is compiled already
        ("/x/torch/utils/data/dataloader.py", "loader"),
        ("/x/torch/serialization.py", "checkpoint"),
        ("/x/train.py", None),
    ],
)
def test_frames_of_the_main_thread_tell_what_it_is_in(file: str, cause: str | None) -> None:
    causes = Causes(0)
    try:
        causes.look([frame_in("/x/other.py"), frame_in(file)], 0.0, 0.5, 0.0)
        assert causes.counts == ({cause: 1} if cause else {})
        causes.look([], 0.8, 1.3, 0.0)
        causes.look([], 0.8, 1.3, 1.2)  # the process waited for a core
        assert causes.counts.get("gil") == 1
    finally:
        gc.callbacks.remove(causes._on_collection)


def test_memory_is_kept_at_a_number_of_moments_that_does_not_grow() -> None:
    memory = Memory()
    for beat in range(10_000):
        memory.look(beat, beat << 20)
    assert 20 < len(memory.moments) <= 48
    assert memory.moments[-1][0] > 9_000


def program_with_memory(*mib: int) -> Evidence:
    ranks = [rank(n, *[STEP] * 3, state="ended", exit_code=0) for n in (0, 1)]
    ranks[1].memory = [(10 * number, each) for number, each in enumerate(mib)]
    return evidence(*ranks, hung=False)


def test_memory_that_grows_from_step_to_step_is_reported() -> None:
    found = diagnose_program(program_with_memory(*range(400, 1400, 50)))
    assert (found.fault, found.rank, found.certain) == ("growth", 1, False)
    assert "5 MiB each" in found.finding


def test_memory_that_is_freed_at_the_end_has_grown_before() -> None:
    assert diagnose_program(program_with_memory(*range(400, 1400, 50), 700, 300)).fault == "growth"
    assert diagnose_program(program_with_memory(*range(400, 1400, 50), *[300] * 20)).fault == "none"


@pytest.mark.parametrize(
    "mib",
    [[400] * 20, [*range(100, 600, 50), *[600] * 20], [400] * 15 + [900] * 15, range(400, 420)],
    ids=["level", "warm-up", "one jump", "little"],
)
def test_memory_that_stays_after_its_start_is_no_fault(mib: list[int]) -> None:
    assert diagnose_program(program_with_memory(*mib)).fault == "none"


def waiting(late: RankEvidence) -> Evidence:
    return evidence(rank(0, STEP, STEP, pending=1), late)


def test_call_that_keeps_pythons_lock_is_named() -> None:
    late = RankEvidence(1, state="running", line=at(6, "extension"), sources=["rank_1"])
    late.crash = "Timeout (0:00:30)!\nThread 0x1 (most recent call first):\n"
    found = diagnose_program(waiting(late))
    assert (found.fault, found.rank, found.line, found.certain) == ("blocked", 1, "train.py:6 (extension)", False)
    assert "keeps Python's lock (GIL)" in found.finding


def test_worker_for_which_a_rank_waits_is_named() -> None:
    torch = "/x/site-packages/torch/utils/data/"
    loader = CodeLine(file=f"{torch}dataloader.py", line=9, function="__next__")
    loop = CodeLine(file=f"{torch}_utils/worker.py", line=5, function="_worker_loop")
    late = rank(1, STEP, state="running", line=at(11), cpu_busy=False, stack=[loader, at(11)])
    late.workers = [
        WorkerStack(rank=1, pid=2, unix_ns=3, worker=0, frames=[at(11), loop]),
        WorkerStack(rank=1, pid=3, unix_ns=3, worker=1, frames=[at(11), loop, at(7, "__getitem__")]),
    ]
    found = diagnose_program(waiting(late))
    assert (found.fault, found.rank) == ("blocked", 1)
    assert found.finding.endswith("it waits for its DataLoader, whose worker 1 was at train.py:7 (__getitem__)")


def test_end_of_a_long_message_is_kept(tmp_path: Path) -> None:
    text = f"Expected to have finished reduction {'x' * 5000}: 12 13"
    assert crashes._shortened(text).endswith("x: 12 13")
    assert len(crashes._shortened(text)) == crashes._MOST_MESSAGE
    assert crashes._shortened("short") == "short"
    indices = "Parameter indices which did not receive grad for rank 1: 4 5"
    message = f"Expected to have finished reduction {'x' * 400}\n{indices}\n and"
    found = diagnose_program(evidence(rank(0), rank(1, error=failed("RuntimeError", message, 7)), hung=False))
    assert any(indices in line for line in found.evidence)


def test_damaged_file_of_a_worker_is_a_problem_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "worker_0.json").write_text("{")
    found = read_rank_observed(tmp_path, 0)
    assert (found.workers, len(found.problems)) == ([], 1)
