"""Rules about one rank: its error, the signal that killed it, the place where it stopped."""

from __future__ import annotations

from typing import get_args

from frog.core import errors
from frog.core.errors import ASKED_TO_STOP, DamageCause, FrogError, UsageError
from frog.core.units import span
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.collectives import CollectiveCalls
from frog.observe.diagnose.diagnosis import Diagnosis, note
from frog.observe.diagnose.rank_error import RankError

_SOON_S = 5.0
"""A heartbeat that ended this long before the others' heartbeats ended because its process did."""


def interrupted(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a launcher that killed the ranks before they had exited after a request to stop: Ctrl-C twice."""
    attempt = case.attempt
    if attempt.end is None or attempt.end.code not in ASKED_TO_STOP or attempt.exits or attempt.hangs:
        return None
    if any(case.error(rank) for rank in case.ranks):
        return None
    steps = case.run.folder.checkpoint_steps()
    saved = f"; the last complete checkpoint is from step {steps[-1]}" if steps else ""
    asked = f"ended with exit code {attempt.end.code} after a request to stop"
    return Diagnosis(
        "interrupted",
        f"a user stopped the run, and the launcher killed the ranks that had not exited yet{saved}: no fault",
        step=max((worker.last_step for worker in attempt.workers.values()), default=None),
        outcome="interrupted",
        evidence=(
            note(attempt.end.unix_ns, "launcher", asked, "events/launcher.jsonl"),
            *(case.report_position(rank) for rank in case.ranks[:8]),
        ),
        advice=_again(case) if steps else "start it again",
    )


def own_error(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a rank that failed with an error other than the loss of its peers."""
    if not case.own_errors:
        return None
    # A rank with a full disk comes first: the others may only have missed its part of a checkpoint.
    rank = min(case.own_errors, key=lambda r: (not _has_full_disk(case, r), case.failed_ns(r) or 0))
    error = case.own_errors[rank]
    for_cause = {"not_finite": _not_finite, "no_space": _full_disk, **dict.fromkeys(get_args(DamageCause), _no_trust)}
    if error.facts.cause in for_cause:
        return for_cause[error.facts.cause](case, calls, rank, error)
    diagnosis = _base(case, calls, rank)
    if _is_usage(error.kind):
        return diagnosis.with_more(
            fault="usage",
            finding=f"{_several(case)} refused to start: {error.first_line}",
            advice=error.hint or "correct the setting that the message names, and start again",
        )
    if error.facts.cause == "no_memory":
        return diagnosis.with_more(
            fault="memory",
            finding=f"rank {rank} ran out of memory {case.where(rank)}: {error.first_line}",
            advice="use smaller micro-batches: raise train.grad_accum; `frog strategies` compares the memory of "
            "each strategy",
        )
    advice = error.hint or (
        f"the traceback is at the end of logs/rank_{rank}/train.log: `frog logs {_name(case)} --rank {rank}`\n"
        f"the program itself raised this error; once it is fixed: `{case.run.folder.resume_command}`"
    )
    return diagnosis.with_more(
        fault="raise",
        finding=f"rank {rank} raised {error.kind} {case.where(rank)}: {error.first_line}",
        advice=advice,
    )


def _has_full_disk(case: Case, rank: int) -> bool:
    return case.own_errors[rank].facts.cause == "no_space"


def _base(case: Case, calls: CollectiveCalls, rank: int) -> Diagnosis:
    """Return the evidence of every diagnosis of a rank: its position, error and end, and which ranks waited for it."""
    lines = [case.report_error(rank), case.report_position(rank), case.report_hang(rank), case.report_exit(rank)]
    evidence = tuple(line for line in lines if line) + tuple(case.report_others(rank))
    return Diagnosis("unknown", "", collective=_awaited(calls, rank), evidence=evidence, **case.about(rank))


def _several(case: Case) -> str:
    return span([*case.own_errors]) if len(case.own_errors) < len(case.ranks) or len(case.ranks) == 1 else "all ranks"


def _is_usage(kind: str) -> bool:
    error_class = getattr(errors, kind, None)
    return isinstance(error_class, type) and issubclass(error_class, FrogError) and issubclass(error_class, UsageError)


def _name(case: Case) -> str:
    return case.run.folder.path.name


def _not_finite(case: Case, calls: CollectiveCalls, rank: int, error: RankError) -> Diagnosis:
    """Report a loss or gradient that is not finite. All ranks raise the error, which lists the ranks that caused it."""
    culprits = error.facts.not_finite
    position = case.position(rank)
    diagnosis = _base(case, calls, culprits[0].rank if culprits else rank).with_more(
        *(
            f"{'':12}  rank {culprit.rank}: loss {culprit.loss}, gradient norm {culprit.grad_norm}, "
            f"samples {list(culprit.sample_ids)}"
            for culprit in culprits
        ),
        fault="nan",
        step=position.step,
        phase="backward",
    )
    if not culprits:
        return diagnosis.with_more(
            rank=None,
            node_rank=None,
            certain=False,
            finding=f"every rank's own gradient of step {position.step} was finite, but their sum was not: an "
            "overflow; or the strategy reduced the gradient before each rank's own part could be checked",
            advice="lower optimizer.learning_rate; strategy.reduction=bucketed shows each rank's own gradient norm",
        )
    first = culprits[0]
    what, phase = ("the loss", "forward") if first.of_loss else ("a gradient", "backward")
    made = "forward" if first.of_loss else "backward, or between that and the reduction"
    whose = span([culprit.rank for culprit in culprits])
    return diagnosis.with_more(
        phase=phase,
        finding=f"{what} of {whose} was not finite in step {position.step} (loss {first.loss}, gradient norm "
        f"{first.grad_norm}); it arose in {made}, and all ranks stopped before the optimizer changed a weight",
        advice="inspect the samples of that step: `frog data inspect`; lower optimizer.learning_rate\n"
        f"the checkpoints were saved before it: `{case.run.folder.resume_command}`",
    )


def _full_disk(case: Case, calls: CollectiveCalls, rank: int, error: RankError) -> Diagnosis:
    diagnosis, saved = _base(case, calls, rank), error.facts.step
    step, phase = (saved, "checkpoint") if saved is not None else (diagnosis.step, diagnosis.phase)
    doing = f"writing its part of the checkpoint of step {saved}" if saved is not None else case.where(rank)
    steps = case.run.folder.checkpoint_steps()
    kept = f"the last complete checkpoint is from step {steps[-1]}" if steps else "there is no checkpoint yet"
    return diagnosis.with_more(
        fault="disk",
        step=step,
        phase=phase,
        finding=f"the disk was full for rank {rank}, {doing}",
        advice=f"free some space ({kept}; checkpoint.keep_last sets how many are kept), then "
        f"`{case.run.folder.resume_command}`",
    )


def _no_trust(case: Case, calls: CollectiveCalls, rank: int, error: RankError) -> Diagnosis:
    damage = error.facts.damage
    return _base(case, calls, rank).with_more(
        *(f"{'':12}  {file}" for file in damage),
        fault=min((file.cause for file in damage), key=get_args(DamageCause).index, default="torn"),
        rank=damage[0].rank if damage else None,
        phase="checkpoint",
        finding=f"every checkpoint of the run is damaged, so it could not resume: {'; '.join(map(str, damage[:2]))}",
        advice="start a new run; the logs and events of this one are unchanged. Which program wrote to the "
        "checkpoints?",
    )


def stopped(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a rank that stopped sending heartbeats while it existed, by the watchdog or the heartbeat's age."""
    silent = [event.rank for event in case.attempt.hangs if event.kind == "silent"]
    silent = [rank for rank in silent if _noticed_ns(case, rank) is None]
    if silent:
        rank = silent[0]
        hang = case.hang(rank)
        waited = hang.waited_s if hang else 0.0
        how = f"no heartbeat for {waited:.0f} s, until the watchdog killed it"
        certain = True
    else:
        silence = _fell_silent(case)
        if silence is None:
            return None
        rank, before_s = silence
        how = f"its heartbeat stopped {before_s:.0f} s before the others timed out"
        certain = case.signal_of(rank) is None or case.signal_of(rank) == "SIGTERM"
    return _base(case, calls, rank).with_more(
        fault="stop",
        certain=certain,
        finding=f"rank {rank} was stopped {case.where(rank)}: its process still existed but did nothing ({how})",
        advice="a stopped process (SIGSTOP, a debugger, a frozen container or laptop) or one blocked in the kernel (a "
        "network file system that does not answer: state D in `ps`)\n"
        f"{_again(case)}",
    )


def _noticed_ns(case: Case, rank: int) -> int | None:
    """Return when peers lost their connection to a rank, if the watchdog killed it later: its process had ended."""
    hang = case.hang(rank)
    if hang is None:
        return None
    closed_ns = _closed_ns(case)
    return closed_ns if closed_ns is not None and closed_ns < hang.unix_ns else None


def _closed_ns(case: Case) -> int | None:
    """Return when the first peer failed, if a connection closed; later peers may have lost that peer instead.

    Return None if another rank timed out at about that time: a rank closes its connections before it reports.
    """
    first = case.first_lost
    # Peers of a process that ends notice it immediately: its connections close. Peers of a stopped process wait.
    if first is None or case.comm_errors[first].facts.cause != "closed":
        return None
    closed_ns = case.failed_ns(first)
    gave_up_ns = [ns for rank in case.timed_out if (ns := case.failed_ns(rank)) is not None]
    return None if closed_ns is None or any(ns - closed_ns < _SOON_S * 1e9 for ns in gave_up_ns) else closed_ns


def _fell_silent(case: Case) -> tuple[int, float] | None:
    """Return the rank whose heartbeat ended long before all others, which then failed while waiting for it."""
    signs = {rank: beat.unix_ns for rank in case.ranks if (beat := case.attempt.beats.get(rank))}
    quiet = [rank for rank in signs if case.silent(rank) and not case.attempt.hangs]
    others = [ns for rank, ns in signs.items() if rank not in quiet]
    if len(quiet) != 1 or not others or not case.comm_errors or _closed_ns(case) is not None:
        return None
    before_s = (min(others) - signs[quiet[0]]) / 1e9
    return (quiet[0], before_s) if before_s > _SOON_S else None


def stuck(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a collective in which some ranks waited forever because a living rank never called it."""
    stuck_events = [event for event in case.attempt.hangs if event.kind == "stuck"]
    absence = calls.absence
    if absence is None or not (stuck_events or case.timed_out) or len(absence.absent) != 1:
        return None
    rank = absence.absent[0]
    waiting = list(absence.waiting)
    return _base(case, calls, rank).with_more(
        fault="stuck",
        collective=str(absence.call),
        certain=False,
        finding=f"{span(waiting)} waited for rank {rank} in {absence.call} (step {absence.call.step}), which it "
        "never called: "
        f"its heartbeat continued {case.where(rank)}",
        advice=f"what does rank {rank} do there that others do not? Look for a collective inside an `if rank == "
        "...`, a loop "
        f"with more iterations, a lock: `py-spy dump --pid PID` shows its stack\n{_again(case)}",
    )


def killed(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a rank that a signal ended."""
    dead = [rank for rank in case.ranks if case.signal_of(rank) not in (None, "SIGTERM", "SIGINT")]
    dead = [rank for rank in dead if case.hang(rank) is None] or dead
    noticed = [rank for rank in case.ranks if _noticed_ns(case, rank) is not None and not case.error(rank)]
    if noticed:
        return _ended_unseen(case, calls, noticed[0])
    if not dead:
        return None
    exited_ns = {}
    for each in dead:
        event = case.exit(each)
        exited_ns[each] = event.unix_ns if event is not None else 0
    rank = min(dead, key=lambda r: exited_ns[r])
    name = case.signal_of(rank)
    diagnosis = _base(case, calls, rank)
    if name == "SIGKILL":
        return diagnosis.with_more(
            fault="kill",
            finding=f"rank {rank} was killed by SIGKILL {case.where(rank)}",
            advice="SIGKILL comes from a person, a scheduler, or a kernel that is out of memory: "
            f"`dmesg | grep -i oom`, `sacct -j JOB --format=MaxRSS`\n{_again(case)}",
        )
    return diagnosis.with_more(
        fault="crash",
        finding=f"rank {rank} crashed with {name} {case.where(rank)}",
        advice="SIGSEGV, SIGBUS and SIGABRT come from compiled code: a full /dev/shm (SIGBUS), an extension, or a "
        f"collective of the wrong size (SIGABRT of gloo)\n{_again(case)}",
    )


def _ended_unseen(case: Case, calls: CollectiveCalls, rank: int) -> Diagnosis:
    """Find a killed rank whose agent noticed late, but whose peers' connections closed immediately."""
    closed_ns = _noticed_ns(case, rank)
    line = note(
        closed_ns,
        "its peers",
        "lost their connection to it; a stopped process would have kept the connection open",
        "events/",
    )
    return _base(case, calls, rank).with_more(
        line,
        fault="kill",
        certain=case.signal_of(rank) == "SIGKILL",
        finding=f"rank {rank} was killed {case.where(rank)}: it ended without an error message, and its connections "
        "closed",
        advice=f"SIGKILL comes from a person, a scheduler, or a kernel that is out of memory: `dmesg | grep -i oom`\n"
        f"{_again(case)}",
    )


def vanished(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find ranks whose records stop without an end, if no launcher reports the reason."""
    gone = [rank for rank in case.ranks if case.silent(rank) and case.exit(rank) is None]
    if not gone:
        return None
    if len(gone) == len(case.ranks):
        rank = gone[0] if len(gone) == 1 else None
        who = f"rank {rank}" if rank is not None else "all ranks"
        diagnosis = Diagnosis("gone", "", evidence=tuple(case.report_position(r) for r in gone[:8]))
        return diagnosis.with_more(
            **(case.about(rank) if rank is not None else {}),
            fault="kill" if rank is not None else "gone",
            certain=False,
            finding=f"{who} ended without an error message {case.where(gone[0])}: killed by SIGKILL, or the machine "
            "failed",
            advice="`dmesg | grep -i oom`, `last -x reboot` or the scheduler's log (`sacct -j JOB`) can tell which\n"
            f"{_again(case)}",
        )
    rank = min(gone, key=lambda r: case.attempt.last_sign_ns(r) or 0)
    return _base(case, calls, rank).with_more(
        fault="kill",
        certain=False,
        finding=f"rank {rank} ended without an error message {case.where(rank)}, and the others lost it: killed by "
        "SIGKILL, or by the kernel when memory ran out",
        advice=f"`dmesg | grep -i oom` on its host or the scheduler's log can tell which\n{_again(case)}",
    )


def _awaited(calls: CollectiveCalls, rank: int) -> str | None:
    """Return the collective in which the others waited for a rank."""
    absence = calls.absence
    if absence is not None and rank in absence.absent:
        return str(absence.call)
    own = [call for sequences in calls.sequences for call in sequences.get(rank, [])[-1:] if not call.ended]
    return str(own[0]) if own else None


def _again(case: Case) -> str:
    return (
        f"continue from the last checkpoint: `{case.run.folder.resume_command}`; "
        "`frog run --restarts 2 ...` does that automatically"
    )
