"""The error of a failed world, from the rank that failed first."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from frog.core import errors
from frog.core.errors import CommError, FrogError, LaunchError, UsageError, describe_exit, shell_code, signal_code
from frog.core.runs.folder import RunFolder
from frog.core.runs.read import read_lines
from frog.core.units import count, some_of

_MOST_RANKS = 8
_TOGETHER_S = 10
"""Failures within this time belong together. torchrun kills hanging ranks 30 s after the failure that they caused."""
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals by which native code ends: gloo aborts if ranks pass it different sizes."""


class Blame(IntEnum):
    """How likely a failure is the cause of the others, the likeliest first."""

    CAUSE = 0
    TEARDOWN = 1
    """It finished its program, and failed when its process shut down."""
    WAITED = 2
    """It waited too long for another rank."""
    LOST_PEER = 3
    """Its connection to another rank ended."""
    STOPPED = 4
    """It was asked to stop, after another failure."""


Failure = dict[str, Any]
"""An agent's report of a failed rank: rank, pid, code (negative: the signal), time_s, error, traceback,
and left, the ranks of its node that had ended without an error.

For a program that is not Frog's, `frog.launch.printed_errors` adds: blame; ended, True if its program had ended; and in
left, the ranks of all nodes.
"""


def last_failures(path: Path) -> list[Failure]:
    """Return the failures that an agent reported for its last attempt; empty if it did not fail."""
    events = read_lines(path, dict[str, Any]).events
    last = max((event["attempt"] for event in events), default=0)
    return [event for event in events if event["event"] == "exit" and event["attempt"] == last]


def first_failure(failures: Sequence[Failure]) -> Failure:
    """Return the first failure; among failures at the same time, prefer a rank that did not merely lose its peers."""
    start_s = min(failure["time_s"] for failure in failures)
    together = [failure for failure in failures if failure["time_s"] - start_s <= _TOGETHER_S]
    return min(together, key=lambda failure: (_is_victim(failure), failure["time_s"], failure["rank"]))


def final_failures(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures that ended an elastic run, without the losses that it survived.

    These are the last rank that did not merely lose its peers, and all failures together with it or later.
    """
    causes = [failure for failure in failures if not _is_victim(failure)] or failures
    last_s = max((failure["time_s"] for failure in causes), default=0)
    return [failure for failure in failures if failure["time_s"] >= last_s - _TOGETHER_S]


def world_error(
    failures: Sequence[Failure],
    lost: Mapping[str, int],
    codes: Sequence[int],
    folder: RunFolder | None = None,
    unaware: Sequence[str] = (),
) -> LaunchError:
    """Return the error of a failed world, with its exit code.

    failures: the ranks that failed in the last attempt; lost: the signal that killed the agent of each lost node, by
    host; codes: the relevant agents' exit codes from Popen; folder: the run folder, if any;
    unaware: hosts that the launcher stopped because their ranks did not fail after another node had failed.
    """
    if failures and not (lost and _is_victim(first_failure(failures))):
        return explain(failures, folder)
    if lost:
        host, number = next(iter(lost.items()))
        after = explain(failures, folder) if failures else None
        what = f"{host} {describe_exit(-number)} with all its ranks"
        if unaware:
            what += f"\nthe ranks of {', '.join(unaware)} did not notice, so the launcher stopped them"
        error = LaunchError(f"{what}\n{after.what}" if after else what, after.hint if after else None)
        error.exit_code = after.exit_code if after else signal_code(number)
        return error
    code = next(filter(None, codes), 1)
    error = LaunchError(f"the world ended with exit code {code}, but no rank failed", "see the agent's output above")
    error.exit_code = shell_code(code)
    return error


def explain(failures: Sequence[Failure], folder: RunFolder | None = None) -> LaunchError:
    """Return the error of a failed world, with its exit code."""
    first = first_failure(failures)
    report, expected = first["error"] or {}, _is_frogs(first)
    words = (report.get("message") or "") + (f"\n  try: {report['hint']}" if report.get("hint") else "")
    if first["code"] == UsageError.exit_code and expected:
        error = LaunchError(words)
    else:
        said = words if expected else (first["traceback"] or words).rstrip()
        also, after = _others(first, failures) if "blame" in first else (_too(first, failures), [])
        text = "\n".join([f"{describe_failure(first)}{also}", *([said] if said else []), *after])
        error = LaunchError(text, _where_to_look(first, folder) if folder else None)
    error.exit_code = shell_code(first["code"])
    return error


def _where_to_look(first: Failure, folder: RunFolder) -> str | None:
    log = folder.rank_log(first["rank"])
    if "blame" not in first:
        if first["error"]:
            return f"see its log: {log}"
        return f"frog diagnose {folder.path}" if -first["code"] in _CRASHES else None
    return f"frog diagnose {folder.path}" + (f", or its log: {log}" if log.exists() else "")


def _too(first: Failure, failures: Sequence[Failure]) -> str:
    others = {failure["rank"] for failure in failures} - {first["rank"]}
    return f" ({count(len(others), 'other rank')} failed too)" if others else ""


def _others(first: Failure, failures: Sequence[Failure]) -> tuple[str, list[str]]:
    """Return what a program's first failure means for its other ranks: after the first line, and at the end."""
    others = [failure for failure in failures if failure["rank"] != first["rank"]]
    is_cause = first["blame"] <= Blame.TEARDOWN
    num_victims = sum(is_cause and failure["blame"] > Blame.TEARDOWN for failure in others)
    num_same = sum(is_cause and _error_of(failure) == _error_of(first) is not None for failure in others)
    num_more = len(others) - num_victims - num_same
    after = []
    if first["blame"] == Blame.TEARDOWN:
        had = "had ended" if first["ended"] else "had probably ended"
        after.append(
            f"its program {had}: the process failed while it shut down. A thread of a process group was still running; "
            "call torch.distributed.destroy_process_group() at the end of the program"
        )
    if not is_cause and first["left"]:
        after.append(f"{name_ranks(first['left'])} had ended without an error while this rank still waited for others")
    if num_same:
        after.append(f"{count(num_same, 'other rank')} failed with the same error")
    if num_victims:
        after.append(f"{count(num_victims, 'other rank')} failed because of it")
    if num_more:
        after.append(f"{count(num_more, 'other rank')} failed too")
    return ("" if first["blame"] != Blame.TEARDOWN else ", after its program"), after


def _error_of(failure: Failure) -> tuple[str | None, str] | None:
    """Return the class and message of a failure's error, if it reported one."""
    error = failure["error"]
    return (error["type"], error["message"]) if error else None


def name_ranks(numbers: Sequence[int]) -> str:
    """Name ranks in a sentence: "rank 3", "ranks 0, 1"."""
    return f"rank{'s' if len(numbers) > 1 else ''} {some_of(numbers, _MOST_RANKS)}"


def describe_failure(failure: Failure) -> str:
    """Describe which rank ended, and how."""
    return f"rank {failure['rank']} (pid {failure['pid']}) {describe_exit(failure['code'])}"


def _is_frogs(failure: Failure) -> bool:
    """True if a rank failed with an error that Frog explains, so that its traceback is not needed."""
    error_type = getattr(errors, (failure["error"] or {}).get("type") or "", None)
    return isinstance(error_type, type) and issubclass(error_type, FrogError)


def _is_victim(failure: Failure) -> int:
    """Return 0 if this rank failed on its own, more if another had left: a CommError, or torchrun ended it.

    Blames of programs that are not Frog's are ordered by their likelihood.
    """
    if "blame" in failure:
        return int(failure["blame"])
    return failure["code"] == -signal.SIGTERM or (failure["error"] or {}).get("type") == CommError.__name__
