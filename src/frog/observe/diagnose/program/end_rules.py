"""Rules about a rank that ended: its exception, its signal, its exit code, or what the scheduler says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from frog.core.errors import describe_exit, signal_name
from frog.core.runs.observed import CodeLine
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis, note
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, SeenError, at_place, place
from frog.observe.diagnose.program.library_partings import lines_with, user_files
from frog.observe.diagnose.program.peer_errors import is_victim, lost_loader, own_error, timed_out
from frog.observe.diagnose.program.rank_reports import describe_call, report_ranks
from frog.observe.diagnose.program.silent_rules import first_not_finite, not_finite_lines

_FAR = float("inf")
_OF_COMPILED_CODE = (
    "SIGSEGV, SIGBUS and SIGABRT come from compiled code: a full /dev/shm (SIGBUS), an extension, a CUDA error; "
    "`ulimit -c unlimited` keeps a core file"
)

_DEVICE_MEMORY = re.compile(
    r"(CUDA|HIP|XPU|NPU|GPU) out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
)
_HOST_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|unable to allocate|DefaultCPUAllocator|std::bad_alloc"
)
_NOT_WRITTEN = re.compile(
    r"No space left on device|File too large|Disk quota exceeded|PytorchStreamWriter failed writing|"
    r"inline_container\.cc:\d+\].{0,9}unexpected pos"  # torch.save, if a write failed
)
_NOT_FINITE = re.compile(r"\b(nan|nans|inf|infinite|non-?finite|not finite)\b", re.IGNORECASE)


def interrupted(evidence: Evidence) -> Diagnosis | None:
    """Find a user's Ctrl-C or SIGTERM to the launcher."""
    if not evidence.stopped_by_user or evidence.hung or _own_errors(evidence):
        return None
    return Diagnosis(
        "interrupted",
        "a user stopped the program: no fault",
        outcome="interrupted",
        evidence=report_ranks(evidence, sorted(evidence.ranks)),
        advice="start it again",
    )


def own_exception(evidence: Evidence) -> Diagnosis | None:
    """Find the first rank that an exception of its own ended."""
    errors = _own_errors(evidence)
    rank = _first(errors)
    if rank is None:
        return None
    error = errors[rank]
    same = sorted(number for number, other in errors.items() if (other.type, other.line) == (error.type, error.line))
    diagnosis = _base(evidence, rank, same if len(same) > 1 else [rank]).with_more(
        certain=len(errors) == 1 or len(same) == len(errors) or error.unix_ns is not None,
    )
    for rule in (_loader, _memory, _disk, _not_finite):
        special = rule(evidence.ranks[rank], error, diagnosis)
        if special is not None:
            return _of_several(evidence, special, same) if special.fault == "nan" and len(same) > 1 else special
    who = span(same) if len(same) < max(len(evidence.world), 1) or len(same) == 1 else "all ranks"
    at = at_place(error.line)
    return diagnosis.with_more(
        fault="raise",
        finding=f"{who} raised {error.short_type}{at}: {error.first_line}",
        advice=f"correct the error; {_traceback_in(error)}{_victims(evidence, same)}",
    )


def first_own_error(evidence: Evidence) -> SeenError | None:
    """Return the first error that ended a rank and was its own."""
    errors = _own_errors(evidence)
    rank = _first(errors)
    return errors[rank] if rank is not None else None


def _first(errors: dict[int, SeenError]) -> int | None:
    return min(errors, key=lambda number: (errors[number].unix_ns or _FAR, number), default=None)


def _own_errors(evidence: Evidence) -> dict[int, SeenError]:
    errors = {number: own_error(rank) for number, rank in evidence.ranks.items()}
    return {number: error for number, error in errors.items() if error is not None}


def _base(evidence: Evidence, rank: int, ranks: list[int]) -> Diagnosis:
    """Return what every diagnosis of a rank has: its place, its line, the collective in which others waited."""
    seen = evidence.ranks.get(rank)
    line = None
    if seen is not None:
        line = seen.error.line if seen.error is not None and seen.error.line else seen.line
    waiting = [call for number, other in evidence.ranks.items() if number != rank for call in other.pending]
    first = min(waiting, key=lambda call: call.created_ns or 0, default=None)
    return Diagnosis(
        "unknown",
        "",
        rank=rank,
        node_rank=seen.node_rank if seen else None,
        line=place(line) or None,
        collective=describe_call(evidence, first) if first else None,
        evidence=report_ranks(evidence, ranks),
    )


def _loader(rank: RankEvidence, error: SeenError, diagnosis: Diagnosis) -> Diagnosis | None:
    if not lost_loader(error):
        return None
    killed = re.search(r"killed by signal: ?(\w+)", error.message)
    how = f"by the signal {killed[1]}" if killed else "unexpectedly"
    anywhere = any(frame.file.endswith("signal_handling.py") for frame in error.frames)  # torch's SIGCHLD handler
    at = at_place(error.line)
    after = f": a signal interrupted it{at}, which need not be where it reads" if anywhere else at
    return diagnosis.with_more(
        fault="loader",
        line=None if anywhere else diagnosis.line,
        finding=f"a DataLoader worker of rank {rank.rank} ended {how}, so rank {rank.rank} could not continue{after}",
        advice="a killed worker usually means that memory or /dev/shm is full: `dmesg | grep -i oom`, `df -h "
        "/dev/shm`; "
        "use fewer workers or a smaller prefetch_factor\n"
        "num_workers=0 shows an exception of the data set itself",
    )


def _memory(rank: RankEvidence, error: SeenError, diagnosis: Diagnosis) -> Diagnosis | None:
    device = "OutOfMemoryError" in error.type or _DEVICE_MEMORY.search(error.message)
    if not device and error.short_type != "MemoryError" and not _HOST_MEMORY.search(error.message):
        return None
    what = "GPU memory" if device else "memory"
    return diagnosis.with_more(
        fault="memory",
        finding=f"rank {rank.rank} ran out of {what}" + at_place(error.line) + f": {error.first_line}",
        advice="use a smaller batch per rank with more gradient accumulation, activation checkpointing, or shard the "
        "model (FSDP, ZeRO)\nif only one rank has too little, look for uneven data, a second process on its "
        "GPU, or work "
        "that only this rank does",
    )


def _disk(rank: RankEvidence, error: SeenError, diagnosis: Diagnosis) -> Diagnosis | None:
    if not _NOT_WRITTEN.search(error.message):
        return None
    return diagnosis.with_more(
        fault="disk",
        finding=f"rank {rank.rank} could not write a file"
        + at_place(error.line)
        + f": its disk is full, over a quota or limit, or fails ({error.first_line})",
        advice="`df -h`, `df -i`, `quota -s` and `ulimit -f` on its host, for the folder of that file\n"
        "the file is incomplete: resume from the checkpoint before it",
    )


def _not_finite(rank: RankEvidence, error: SeenError, diagnosis: Diagnosis) -> Diagnosis | None:
    if not (_NOT_FINITE.search(error.message) or error.short_type in ("FloatingPointError", "NonFiniteError")):
        return None
    return diagnosis.with_more(
        fault="nan",
        finding=f"rank {rank.rank} stopped at a value that is not finite"
        + (f", at {place(error.line)}" if error.line else "")
        + f": {error.first_line}",
        advice="find its first place with torch.autograd.set_detect_anomaly(True), and print this rank's "
        "samples of that "
        "step\nafter an all-reduce every rank has the NaN: check the loss of each rank before it",
    )


def _of_several(evidence: Evidence, diagnosis: Diagnosis, ranks: list[int]) -> Diagnosis:
    """Return a diagnosis of ranks that stopped at a NaN together: only their logs can tell where it arose."""
    first = first_not_finite(evidence)
    rest = diagnosis.finding.partition(" stopped at ")[2]
    arose = "the evidence does not show on which it arose" if first is None else f"it arose on rank {first}"
    return diagnosis.with_more(
        *not_finite_lines(evidence, ranks),
        finding=f"{span(ranks)} stopped at {rest}; {arose}",
        rank=first,
        certain=False,
    )


def _traceback_in(error: SeenError) -> str:
    return f"its traceback is in {error.source}" if error.source else "its traceback is in its log"


def _victims(evidence: Evidence, ranks: list[int]) -> str:
    victims = sum(is_victim(rank) for number, rank in evidence.ranks.items() if number not in ranks)
    if not victims:
        return ""
    if victims == 1:
        return "\nthe error of the other rank follows from it"
    return f"\nthe errors of the other {victims} ranks follow from it"


def lost_node(evidence: Evidence) -> Diagnosis | None:
    """Find a node whose launcher was killed together with its ranks."""
    lost = sorted(number for number, rank in evidence.ranks.items() if rank.node_lost_ns is not None)
    if not lost:
        return None
    lost_ns = evidence.ranks[lost[0]].node_lost_ns
    return _base(evidence, lost[0], lost).with_more(
        note(lost_ns, "launcher", f"the node of {span(lost)} ended without a word", "events/launcher.jsonl"),
        fault="node",
        finding=f"the node of {span(lost)} was lost: its agent and its ranks were killed together",
        advice="look at the node: its power, its kernel's log, the scheduler's reason",
    )


# ---- without an exception --------------------------------------------------------------------------------------------


def killed(evidence: Evidence) -> Diagnosis | None:
    """Find the first rank that a signal ended, other than the launcher's SIGTERM."""
    dead = {
        number: rank
        for number, rank in evidence.ranks.items()
        if rank.exit_code is not None and rank.exit_code < 0 and -rank.exit_code not in (2, 15)
        and rank.state != "ended" and not is_victim(rank) and not (rank.exit_code == -6 and rank.error)
    }  # fmt: skip
    if not dead or (evidence.hung and not _let_others_wait(evidence, dead)):
        return None
    alike = Counter(rank.exit_code for rank in dead.values())  # srun kills the other tasks: the odd one came first
    number = min(dead, key=lambda each: (dead[each].exited_ns or _FAR, alike[dead[each].exit_code], each))
    if _failed_before(evidence, dead[number]):
        return None
    rank, diagnosis = dead[number], _base(evidence, number, [number])
    name = signal_name(-(rank.exit_code or 0))
    at = f"; it was last seen at {place(rank.line)}" if rank.line else ""
    waiting = sorted(other.rank for other in evidence.ranks.values() if other.pending and is_victim(other))
    if waiting:
        call = evidence.ranks[waiting[0]].pending[0]
        at += f"; {span(waiting)} waited for it in {describe_call(evidence, call)}"
        diagnosis = diagnosis.with_more(peer_line=place(call.line) or None)
    if name == "SIGKILL":
        return _sigkill(evidence, number, at, diagnosis)
    return diagnosis.with_more(
        *(f"{'':12}  {line}" for line in rank.crash.splitlines()[:6]),
        fault="crash",
        finding=f"rank {number} crashed with {name}{at}",
        advice=_OF_COMPILED_CODE,
    )


def _failed_before(evidence: Evidence, dead: RankEvidence) -> bool:
    """True if a rank ended with an exit code of its own before this one was killed: the launcher kills the rest."""
    ended_ns = dead.exited_ns
    if dead.exit_code != -9 or ended_ns is None:
        return False
    others = evidence.ranks.values()
    return any((rank.exit_code or 0) > 0 and (rank.exited_ns or ended_ns) < ended_ns for rank in others)


def _let_others_wait(evidence: Evidence, dead: Mapping[int, RankEvidence]) -> bool:
    """True if the dead ranks explain why others timed out: these still waited when a watchdog saw them.

    A launcher that found the hang, and a scheduler that cancels the job, kill the waiting ranks too; NCCL's watchdog
    aborts them.
    """
    waiting = [rank for rank in evidence.ranks.values() if rank.pending]
    codes = {rank.exit_code for rank in dead.values()}
    killed_too = any(rank.exit_code in codes for rank in waiting)
    by_launcher = evidence.deadline_s is not None
    return bool(waiting) and not killed_too and not by_launcher


def _sigkill(evidence: Evidence, number: int, at: str, diagnosis: Diagnosis) -> Diagnosis:
    full = evidence.state("OUT_OF_MEMORY")
    if full is not None:
        return diagnosis.with_more(
            note(full.unix_ns, "scheduler", full.text or full.state or "", full.source),
            fault="memory",
            finding=f"the kernel killed rank {number}, whose job was out of memory{at}",
            advice="ask for more memory (--mem), or use fewer DataLoader workers, less prefetching, smaller batches",
        )
    return diagnosis.with_more(
        fault="kill",
        finding=f"rank {number} was killed by SIGKILL{at}",
        advice="SIGKILL comes from a person, a scheduler, or a kernel that is out of memory: "
        "`dmesg | grep -i oom`, `sacct -j JOB --format=JobID,State,MaxRSS`",
    )


def exited(evidence: Evidence, *, at_all: bool = False) -> Diagnosis | None:
    """Find the first rank that ended with an exit code of its own, without an exception.

    at_all: also those with exit code 1 of which nothing else is known: a log with their exception may be missing.
    """
    left = {
        number: rank
        for number, rank in evidence.ranks.items()
        if (rank.exit_code or 0) > 0
        and (rank.error is None or rank.error.short_type == "SystemExit")
        and (at_all or rank.state is not None or rank.exit_code != 1)
    }
    if not left or evidence.hung:
        return None
    number = min(left, key=lambda each: (left[each].exited_ns or _FAR, each))
    rank = left[number]
    same = sorted(each for each in left if left[each].exit_code == rank.exit_code)
    usage = len(same) == len(evidence.world) and rank.exit_code == 2
    ranks = same if usage else [number]
    busy = [each for each in left if not left[each].is_behind_its_count]
    if len(same) == len(left) > len(busy) == 1 and left[busy[0]].line is not None and not usage:
        return _base(evidence, busy[0], busy).with_more(
            fault="exit",
            certain=False,
            finding=f"{span(same)} {describe_exit(rank.exit_code or 0)} without an exception: "
            f"rank {busy[0]} was at {place(left[busy[0]].line)}, and the others waited for it in a collective"
            f"{_exits_at(evidence, rank.exit_code or 0)}",
            advice="a watchdog in each rank ends all of them if one rank is late: find out what that rank did",
        )
    who = "all ranks" if len(same) == len(evidence.world) > 1 else span(ranks)
    at = f"; it was last seen at {place(rank.line)}" if rank.line else ""
    return _base(evidence, number, ranks).with_more(
        fault="usage" if usage else "exit",
        certain=len(left) == 1 or usage,
        finding=f"{who} {describe_exit(rank.exit_code or 0)} without an exception{at}"
        f"{'' if usage else _exits_at(evidence, rank.exit_code or 0)}",
        advice="exit code 2 usually means wrong arguments: the last lines of the log name them"
        if usage
        else "look for sys.exit, os._exit, or a C library that ends the process, near that line; its last log "
        "lines may "
        "tell why",
    )


def _exits_at(evidence: Evidence, code: int) -> str:
    exits = " and ".join(map(place, exit_lines(evidence, code)))
    return f"; the program can end with this code at {exits}" if exits else ""


def exit_lines(evidence: Evidence, code: int) -> list[CodeLine]:
    """Return the lines of the program that end it with an exit code; none if there are too many."""
    clean = r"|\b_?exit\((?:os\.EX_OK)?\)|\braise SystemExit\b(?:\(0?\))?\s*$" if code == 0 else ""
    exits = lines_with(user_files(evidence), re.compile(rf"\b_?exit\({code}\){clean}"))
    return exits if len(exits) <= _MOST_EXITS else []


_MOST_EXITS = 3
_JOB_STATES: dict[str, tuple[str, str, str]] = {
    "OUT_OF_MEMORY": (
        "memory",
        "the job ran out of memory, and the kernel killed a process",
        "ask for more memory (--mem), or use fewer DataLoader workers and smaller batches; "
        "`sacct -j JOB --format=JobID,State,MaxRSS,NodeList` shows where",
    ),
    "NODE_FAIL": ("node", "a node of the job failed", "resubmit the job; --exclude avoids the node that sacct names"),
    "PREEMPTED": ("preempted", "the scheduler preempted the job: no fault of the program", "resubmit or --requeue it"),
    "TIMEOUT": (
        "time_limit",
        "the job reached its time limit",
        "if it was still making progress, resume it from its last checkpoint or ask for more time (--time)\n"
        "if it was not, look for the last line of each rank's log",
    ),
    "CANCELLED": (
        "interrupted",
        "a user or the scheduler cancelled the job",
        "`sacct -j JOB --format=State%30,End` shows by whom and when",
    ),
}  # fmt: skip


def of_job(evidence: Evidence, states: tuple[str, ...] = tuple(_JOB_STATES)) -> Diagnosis | None:
    """Return what the scheduler says about the whole job."""
    reports = (evidence.state(name) for name in states)
    job = next((report for report in reports if report is not None), None)
    if job is None or job.state is None:
        return None
    fault, finding, advice = _JOB_STATES[job.state]
    line = note(job.unix_ns, "scheduler", job.text or job.state, job.source)
    outcome = "interrupted" if fault in ("interrupted", "preempted") else "failed"
    return Diagnosis(
        fault,
        finding,
        certain=job.state != "OUT_OF_MEMORY",
        outcome=outcome,
        evidence=(line, *report_ranks(evidence, sorted(evidence.ranks))),
        advice=advice,
    )


# ---- without a record of the end -------------------------------------------------------------------------------------


def vanished(evidence: Evidence) -> Diagnosis | None:
    """Find a rank that stopped without an end while others lost it."""
    victims = [number for number, rank in evidence.ranks.items() if is_victim(rank)]
    gone = [
        number
        for number in evidence.world
        if (rank := evidence.ranks.get(number)) is None
        or (rank.error is None and rank.exit_code is None and rank.state in (None, "running"))
    ]
    if not victims or not gone or evidence.active or _only_terminated(evidence, victims):
        return None
    times = {number: rank.seen_ns for number in gone if (rank := evidence.ranks.get(number)) and rank.seen_ns}
    first = min(times, key=lambda number: times[number] or 0, default=gone[0])
    rank = evidence.ranks.get(first)
    at = f" at {place(rank.line)}" if rank is not None and rank.line else ""
    errors = [evidence.ranks[number].error for number in victims]
    crashed = next((number for number in gone if number in evidence.ranks and evidence.ranks[number].crash), None)
    if crashed is not None:
        return _crashed(evidence, crashed, victims)
    waited = any(error is not None and timed_out(error) for error in errors)
    how = "stopped or blocked" if waited else "killed (SIGKILL), or its host failed"
    return Diagnosis(
        "gone" if waited else "kill",
        f"{span(gone)} left no end{at}, and {span(victims)} lost the connection: {how}",
        rank=first,
        line=place(rank.line) or None if rank is not None else None,
        certain=False,
        evidence=report_ranks(evidence, [first, *victims]),
        advice="`dmesg | grep -i oom` on its host or the scheduler's log (`sacct -j JOB`) can tell how it ended",
    )


def _only_terminated(evidence: Evidence, victims: list[int]) -> bool:
    """True if a text has only srun's word that the others were terminated: not that they lost a rank."""
    return not evidence.has_records and all(
        evidence.ranks[number].error is None and evidence.ranks[number].exit_code == -15 for number in victims
    )


def _crashed(evidence: Evidence, number: int, victims: list[int]) -> Diagnosis:
    """Report a rank whose fault handler wrote down that it crashed."""
    rank = evidence.ranks[number]
    what = rank.crash.strip().partition("\n")[0].removeprefix("Fatal Python error: ")[:200]
    at = f" at {place(rank.line)}" if rank.line else ""
    return Diagnosis(
        "crash",
        f"rank {number} crashed{at}: {what}; {span(victims)} lost the connection",
        rank=number,
        node_rank=rank.node_rank,
        line=place(rank.line) or None,
        evidence=(
            *report_ranks(evidence, [number, *victims]),
            *(f"{'':12}  {line}" for line in rank.crash.splitlines()[:6]),
        ),
        advice=_OF_COMPILED_CODE,
    )


def teardown(evidence: Evidence) -> Diagnosis | None:
    """Find ranks that crashed or waited only after the program's end."""
    ranks = evidence.ranks
    ended = [
        number
        for number, rank in ranks.items()
        if rank.state == "ended" and rank.exit_code not in (None, 0) and rank.error is None
    ]
    if not ended or any(rank.state != "ended" for rank in ranks.values()):
        return None
    codes = sorted({ranks[number].exit_code or 0 for number in ended})
    return Diagnosis(
        "teardown",
        f"all ranks reached the end of the program; {span(ended)} then failed while the process shut down "
        f"(exit code {', '.join(map(str, codes))}): the results are complete",
        rank=ended[0],
        outcome="completed",
        evidence=report_ranks(evidence, ended),
        advice="call dist.destroy_process_group() at the end, on all ranks, after the last collective completed",
    )
