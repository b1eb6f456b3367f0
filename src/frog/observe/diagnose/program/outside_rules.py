"""Rules about a rank that others wait for in a collective, and that was outside of all: stopped, computing, waiting."""

from __future__ import annotations

from frog.core.runs.observed import CodeLine, WorkerStack
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_ahead import waits_for_itself
from frog.observe.diagnose.program.code_lines import user_line
from frog.observe.diagnose.program.code_partings import Guard, rank_branch
from frog.observe.diagnose.program.compared_calls import Difference
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, at_place, place
from frog.observe.diagnose.program.outside_waits import advice_on_wait, polling_loop, waits_outside
from frog.observe.diagnose.program.rank_reports import describe_inside
from frog.observe.diagnose.program.wait_reports import base_of_wait, branch_around, who_waits


def stopped_rank(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank whose process existed but could not run."""
    missing = (*found.absent, *found.unknown)
    stopped = [each for each in missing if each in evidence.ranks and evidence.ranks[each].stopped]
    if not stopped:
        return None
    rank = evidence.ranks[stopped[0]]
    at = at_place(rank.line)
    return base_of_wait(evidence, found, stopped[0]).with_more(
        fault="stop",
        finding=f"{who_waits(evidence, found)}; {span(stopped)} was stopped{at}: its process existed but did nothing",
        advice="a stopped process (SIGSTOP, a debugger, a frozen container or laptop), or one blocked in the kernel (a "
        "network file system that does not answer: state D in `ps`)",
    )


_NO_PYTHON = "Timeout (0:00:30)!"
"""Python's fault handler writes this when the observer could not run for 30 s."""


def lock_holder(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank in which no Python code could run: a call keeps the interpreter's lock."""
    for number in (*found.absent, *found.unknown):
        rank = evidence.ranks.get(number)
        if rank is None or _NO_PYTHON not in rank.crash or rank.state != "running" or rank.line is None:
            continue
        return base_of_wait(evidence, found, number).with_more(
            fault="blocked",
            certain=False,
            finding=f"{who_waits(evidence, found)}; rank {number} was at {place(rank.line)}, and no Python code of it "
            "could run for 30 s: the call in that line keeps Python's lock (GIL)",
            advice="a C extension must release the GIL before it computes for long or waits for another thread or "
            "process (Py_BEGIN_ALLOW_THREADS, pybind11's gil_scoped_release, ctypes.CDLL instead of PyDLL)",
        )
    return None


def busy_rank(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank that still computes."""
    busy = [each for each in found.absent if evidence.ranks[each].cpu_busy and evidence.ranks[each].state == "running"]
    if not busy:
        return None
    rank = evidence.ranks[busy[0]]
    at = at_place(rank.line)
    branch = rank_branch(rank.line)
    why = f", which only some ranks reach: {branch}" if branch else ""
    around, polls = branch_around(evidence, found), polling_loop(rank) is not None
    why += _calls_elsewhere(around, busy)
    return base_of_wait(evidence, found, busy[0]).with_more(
        fault="busy",
        certain=rank.line is not None and around is None and not polls,
        finding=f"{who_waits(evidence, found)}; {span(busy)} {_was(busy)} still computing{at}{why}"
        f"{_describe_workers(rank)}{waits_outside(rank) if polls else ''}",
        advice="an endless loop, or work that takes longer than the time-out, such as an evaluation on one rank: raise "
        "the timeout of init_process_group, or give all ranks a share of it",
    )


def _was(ranks: list[int]) -> str:
    return "was" if len(ranks) == 1 else "were"


def _calls_elsewhere(branch: Guard | None, ranks: list[int]) -> str:
    """Say that living ranks cannot make a call from the line where the others wait."""
    return f"; the others wait under {branch}: {span(ranks)} must call it from another line" if branch else ""


def blocked_rank(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a living rank that waits for something other than a collective."""
    still = [each for each in found.absent if evidence.ranks[each].state == "running" and evidence.ranks[each].line]
    if not still:
        return None
    rank = evidence.ranks[still[0]]
    branch = rank_branch(rank.line)
    why = f", under {branch}" if branch else ""
    elsewhere = _calls_elsewhere(branch_around(evidence, found), still)
    return base_of_wait(evidence, found, still[0]).with_more(
        fault="blocked",
        finding=f"{who_waits(evidence, found)}; {span(still)} {_was(still)} at {place(rank.line)}"
        f"{describe_inside(rank)}{why}, and did not compute{_thread(rank)}{_describe_workers(rank)}"
        f"{waits_outside(rank)}{elsewhere}",
        certain=evidence.hung and rank.line is not None and waits_for_itself(rank.line, evidence.deadline_s),
        advice=advice_on_wait(rank)
        or "look for a lock, a queue, a file system or a data loader that does not answer, or a sleep, at that line",
    )


_LOADER, _WORKER = "torch/utils/data/dataloader.py", "torch/utils/data/_utils/worker.py"


def _describe_workers(rank: RankEvidence) -> str:
    """Say where the workers of a DataLoader are for which a rank waits."""
    if not any(frame.file.replace("\\", "/").endswith(_LOADER) for frame in rank.stack):
        return ""
    places = [(worker.worker, user_line(reversed(_inside_worker(worker)))) for worker in rank.workers]
    inside = [f"worker {number} was at {place(line)}" for number, line in places if line is not None]
    return "; it waits for its DataLoader" + (f", whose {', '.join(inside[:4])}" if inside else "")


def _inside_worker(worker: WorkerStack) -> list[CodeLine]:
    """Return the frames of a worker's own work: below them are those of the rank that forked it."""
    files = [frame.file.replace("\\", "/") for frame in worker.frames]
    begin = max((number for number, file in enumerate(files) if file.endswith(_WORKER)), default=len(files))
    return worker.frames[begin:]


def _thread(rank: RankEvidence) -> str:
    """Describe the exception that ended a thread, for which the main thread may wait."""
    error = rank.thread_error
    if error is None:
        return ""
    at = at_place(error.line)
    return f"; a thread of it had ended with {error.short_type}{at}: {error.first_line}"
