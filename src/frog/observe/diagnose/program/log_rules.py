"""What the logs say by the table of known errors, next to what the rules conclude from the ranks.

Where Frog's launcher, an observer or a flight recorder wrote records, these are facts and the log explains them. Text
alone has no such facts: there, the first error of the log is the answer, unless ranks that waited tell more than their
time-out does.
"""

from __future__ import annotations

from dataclasses import replace

from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.known_errors.explain import Explanation
from frog.observe.diagnose.known_errors.findings import Finding
from frog.observe.diagnose.known_errors.log_answer import log_answer
from frog.observe.diagnose.known_errors.table.known import Level
from frog.observe.diagnose.program.barrier_rules import raised_instead
from frog.observe.diagnose.program.evidence import Evidence

_SAYS_LITTLE = ("unknown", "exit", "usage")
_OF_EXCEPTIONS = ("raise", "memory", "disk", "loader", "nan", "exit", "usage")
_OF_WAITS = (
    "branch", "order", "shape", "dtype", "batches", "skipped", "ended", "message", "busy", "blocked", "gone", "network",
    "root", "stuck",
)  # fmt: skip
_OF_CALLS = ("branch", "order", "shape", "dtype", "batches", "skipped", "message", "root")
"""Faults that records of calls show: a line of a log without an exception, such as a NaN, explains them at most."""
_OF_ENDS = ("kill", "crash", "node", "time_limit", "preempted", "interrupted")
_SAME_END = {
    "slurm-time-limit": "time_limit",
    "slurm-preempted": "preempted",
    "slurm-node-failed": "node",
    "host-out-of-memory": "memory",
    "loader-worker-killed": "loader",
    "cancelled": "interrupted",
    "killed": "kill",
}
"""Ids of known errors, and the faults with which the rules name the same end."""
_MISMATCHES = ("collective-mismatch", "collective-size-mismatch")
"""Ids of known errors that the rules name with one of the faults of waiting ranks."""


def with_log(evidence: Evidence, diagnosis: Diagnosis) -> Diagnosis:
    """Add what the log says to a diagnosis, or put it first."""
    log = evidence.explanation
    if log is None or not log.lines or diagnosis.fault in ("none", "running"):
        return diagnosis
    if log.cause is None:
        return _without_cause(evidence, diagnosis, log)
    answer = log_answer(evidence.where, log)
    if _is_same(diagnosis, log.cause):
        explained = _explained(diagnosis, answer)
        return explained if evidence.has_records else _as_sure_as(explained, answer, log)
    if _comes_first(evidence, diagnosis, log.cause):
        rank = diagnosis.rank if answer.rank is None and diagnosis.fault in _SAYS_LITTLE else answer.rank
        repeats = diagnosis.fault in (*_SAYS_LITTLE, "gone")
        also = () if repeats else (replace(diagnosis, also=()),)
        return replace(
            answer, rank=rank, evidence=(*answer.evidence, *_problems(evidence)), also=(*also, *diagnosis.also)
        )
    if log.cause.level is Level.SYMPTOM and diagnosis.fault in (*_OF_WAITS, *_OF_ENDS):
        return replace(_explained(diagnosis, answer), confidence="", certain=diagnosis.certain)
    return diagnosis.with_more(also=(*diagnosis.also, _brief(answer)))


def _is_same(diagnosis: Diagnosis, cause: Finding) -> bool:
    """True if the rules and the table speak of the same exception, or of the same end."""
    if _SAME_END.get(cause.id) == diagnosis.fault or (cause.id in _MISMATCHES and diagnosis.fault in _OF_WAITS):
        return True
    if diagnosis.fault not in _OF_EXCEPTIONS or cause.exception is None:
        return False
    message = cause.text.partition(": ")[2].strip().splitlines()
    same_rank = cause.rank is None or diagnosis.rank is None or cause.rank == diagnosis.rank
    return same_rank and bool(message) and message[0][:200] in diagnosis.finding


def _explained(diagnosis: Diagnosis, answer: Diagnosis) -> Diagnosis:
    """Add the meaning and the advice of a known error to what the rules found about the same event."""
    if answer.known_error is None:
        return diagnosis
    advice = answer.advice if answer.advice in diagnosis.advice else f"{answer.advice}\n{diagnosis.advice}"
    return replace(diagnosis, advice=advice, known_error=answer.known_error, meaning=answer.meaning)


def _as_sure_as(diagnosis: Diagnosis, answer: Diagnosis, log: Explanation) -> Diagnosis:
    """Let what text alone shows be no surer than the known error is, and name the rank that the launcher names."""
    lines = []
    if diagnosis.known_error is not None and diagnosis.rank is not None and log.reported_rank is None:
        local = log.reported_local_rank
        if local is not None and local != diagnosis.rank:
            lines = [f"The launcher names local rank {local} as the first that failed on its node."]
    confidence = answer.confidence if not answer.certain else ""
    certain = diagnosis.certain and answer.certain
    return replace(
        diagnosis,
        certain=certain,
        confidence=confidence or diagnosis.confidence,
        evidence=(*diagnosis.evidence, *lines),
    )


def _comes_first(evidence: Evidence, diagnosis: Diagnosis, cause: Finding) -> bool:
    """True if the log's answer is better than that of the rules."""
    if diagnosis.fault in _SAYS_LITTLE:
        return True
    if cause.level > Level.SYMPTOM:
        return False
    log = evidence.explanation
    if evidence.has_records:
        if cause.exception is not None and raised_instead(evidence, diagnosis) == cause.exception:
            return False  # the rules name it, and what led to it
        if diagnosis.fault in _OF_CALLS and (cause.exception is None or _is_survived(evidence, cause)):
            return False
        return cause.level is Level.CAUSE and not diagnosis.certain and diagnosis.fault not in _OF_EXCEPTIONS
    few = len(evidence.ranks) * 2 <= len(evidence.world)
    if diagnosis.fault == "gone" and log is not None and log.details and (few or log.abridged):
        return True  # most ranks have no line in this text, or it leaves lines out: that says nothing about them
    return cause.level is Level.CAUSE or diagnosis.fault not in (*_OF_WAITS, *_OF_ENDS)


def _is_survived(evidence: Evidence, cause: Finding) -> bool:
    """True if an exception in a log did not end its rank."""
    ranks = evidence.ranks.values() if cause.rank is None else filter(None, [evidence.ranks.get(cause.rank)])
    return any(error.short_type == cause.exception for rank in ranks for error in rank.caught)


def _brief(answer: Diagnosis) -> Diagnosis:
    return replace(answer, finding=f"in the logs: {answer.finding}", evidence=answer.evidence[:2])


def _without_cause(evidence: Evidence, diagnosis: Diagnosis, log: Explanation) -> Diagnosis:
    if evidence.has_records or not (diagnosis.fault == "unknown" or _is_bare_exit(evidence, diagnosis)):
        return diagnosis
    answer = log_answer(evidence.where, log)
    if answer.rank is None:
        answer = replace(answer, rank=diagnosis.rank)
    if evidence.has_failed and answer.outcome != "failed":
        answer = replace(answer, fault="unknown", outcome="failed", finding=diagnosis.finding)
    return answer.with_more(*diagnosis.evidence, *_problems(evidence))


def _is_bare_exit(evidence: Evidence, diagnosis: Diagnosis) -> bool:
    """True if the log has only a launcher's word that a rank ended with code 1, or aborted, as after any exception.

    srun's word of one task that aborted is more: it kills the others.
    """
    rank = evidence.ranks.get(diagnosis.rank if diagnosis.rank is not None else -1)
    if rank is None or rank.error is not None or rank.crash:
        return False
    aborted = evidence.by_torchrun and (diagnosis.fault, rank.exit_code) == ("crash", -6)
    return aborted or (diagnosis.fault, rank.exit_code) == ("exit", 1)


def _problems(evidence: Evidence) -> tuple[str, ...]:
    return tuple(f"{'':12}  {problem}" for problem in evidence.problems[:20])
