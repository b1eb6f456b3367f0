"""The error of a rank of a third-party program, read from its output, and whether another rank caused it.

Without the decorator `@record` of torch, torchrun knows only exit codes, and the rank that it sees first is often one
whose peer has left. The text of each rank says more: a traceback, a C++ error, or nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frog.core.errors import shell_code, signal_code
from frog.core.runs.folder import RunFolder
from frog.core.runs.observed import Observed, observed_folder, read_rank_observed
from frog.core.runs.outcome import Blame, Failure

Lines = Sequence[tuple[int, str]]
"""Lines of a rank's output, each with its Unix time in nanoseconds."""

_KILLED, _TERMINATED = signal_code(signal.SIGKILL), signal_code(signal.SIGTERM)
_CRASHES = (signal_code(signal.SIGABRT), signal_code(signal.SIGSEGV))
_TOGETHER_NS = 200_000_000
"""Lines of one error message arrive within this time."""
_NUM_LAST = 5
_MOST_LINES = 60
_MOST_MESSAGE_LINES = 30


@dataclass(frozen=True)
class PrintedError:
    """The error of a rank, from its output."""

    type: str | None
    message: str
    text: str
    """The traceback, or the other lines that tell the error."""
    unix_ns: int | None
    blame: Blame


_LOST_PEER = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|Socket closed"
    r"|remote process exited|ncclRemoteError|NCCL error 6|peer.{0,40}(?:exited|disconnected|closed)"
    r"|Connection was likely closed|Did the remote server shutdown|failed to recv, got 0 bytes"
    r"|recvValue failed|sendBytes failed|recvBytes failed|application timeout caused pair closure"
    r"|DistNetworkError|DistStoreError|connectFullMesh failed",
    re.IGNORECASE,
)
_WAITED = re.compile(
    r"Timed out waiting|Watchdog caught collective operation timeout|collective operation timeout"
    r"|Some NCCL operations have failed or timed out|monitoredBarrier|wait timeout after|Socket Timeout|TimeoutError",
    re.IGNORECASE,
)

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
"""torch prints it in front of each line of a traceback."""
_ERROR = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?", re.DOTALL)
_NEXT = re.compile(
    r"\[rank\d+\]:?[WEI]\d{4}|[WEIF]\d{4} |\[[WEIF]\d{4}|terminate called|Exception ignored|Fatal Python"
)
"""Begins a line that does not belong to the error message above it."""


def read_printed_error(lines: Lines) -> PrintedError | None:
    """Return the last error in the output of a rank that has ended; None if it shows none."""
    plain = [(unix_ns, _PREFIX.sub("", text)) for unix_ns, text in lines]
    for index in range(len(plain) - 1, -1, -1):
        text = plain[index][1]
        if text.startswith("terminate called"):
            return _ended_by_exception(plain, index) or _of_terminate(plain, index)
        if text.startswith("Fatal Python error: "):
            return _of_fatal(plain, index)
        if text.startswith(_TRACEBACK) and not (index and plain[index - 1][1].startswith("Exception ignored")):
            return _of_traceback(plain, index)
    return None


def _of_traceback(lines: Lines, last: int) -> PrintedError:
    """Read a traceback with its chain; the first exception of the chain is the cause of the later ones."""
    first = last
    while (earlier := _chained_to(lines, first)) is not None:
        first = earlier
    end = _end_of_error(lines, last)
    root = [text for _, text in lines[first : _end_of_error(lines, first)]]
    shown = [text for _, text in lines[first:end]]
    if len(shown) > _MOST_LINES:
        shown = [*root[: _MOST_LINES - 2], "...", shown[-1]]
    match = _ERROR.match("\n".join(_message_lines(root)))
    kind, message = (match[1].rpartition(".")[2], (match[2] or "").rstrip()) if match else (None, "")
    return PrintedError(
        kind, message, "\n".join(shown).rstrip(), lines[first][0], _blame("\n".join(_message_lines(root)))
    )


def _chained_to(lines: Lines, index: int) -> int | None:
    """Return the index of the traceback that the one at `index` was raised from."""
    above = index - 1
    while above >= 0 and not lines[above][1].strip():
        above -= 1
    if above < 0 or lines[above][1].strip() not in _CHAINED:
        return None
    return next((i for i in range(above, -1, -1) if lines[i][1].startswith(_TRACEBACK)), None)


def _end_of_error(lines: Lines, first: int) -> int:
    """Return the index after a traceback and the message below it."""
    index = first + 1
    while index < len(lines) and lines[index][1][:1] in (" ", "\t"):
        index += 1
    end = min(len(lines), index + _MOST_MESSAGE_LINES)
    for number in range(index + 1, end):
        unix_ns, text = lines[number]
        if unix_ns - lines[number - 1][0] > _TOGETHER_NS:
            return number
        if text.strip() in _CHAINED or text.startswith(_TRACEBACK) or _NEXT.match(text):
            return number
    return end


def _message_lines(texts: Sequence[str]) -> list[str]:
    """Return the lines of a traceback from the exception's name on."""
    return next((list(texts[i:]) for i in range(1, len(texts)) if texts[i][:1] not in (" ", "\t", "")), [])


def _ended_by_exception(lines: Lines, index: int) -> PrintedError | None:
    """Return the exception directly above a `terminate` without an exception of its own: Python ended because of it."""
    if "without an active exception" not in lines[index][1]:
        return None
    error = read_printed_error(lines[:index])
    end = next((i for i in range(index - 1, -1, -1) if lines[i][1].strip()), None)
    is_above = error is not None and end is not None and error.text.endswith(lines[end][1].rstrip())
    return error if is_above else None


def _of_terminate(lines: Lines, index: int) -> PrintedError:
    """Read the message of C++'s `terminate`."""
    texts = [text for _, text in lines[index : index + _MOST_MESSAGE_LINES]]
    kind = re.search(r"instance of '([^']+)'", texts[0])
    what = next((text.partition("what():")[2].strip() for text in texts if "what():" in text), "")
    blame = Blame.TEARDOWN if "without an active exception" in texts[0] else _blame("\n".join(texts))
    text = "\n".join(texts).rstrip()
    return PrintedError(kind[1] if kind else "terminate", what or texts[0], text, lines[index][0], blame)


def _of_fatal(lines: Lines, index: int) -> PrintedError:
    """Read the output of faulthandler, or of the interpreter itself."""
    texts = [text for _, text in lines[index : index + _MOST_LINES]]
    message = texts[0].removeprefix("Fatal Python error: ")
    return PrintedError("Fatal Python error", message, "\n".join(texts).rstrip(), lines[index][0], Blame.CAUSE)


def _blame(message: str) -> Blame:
    if _LOST_PEER.search(message):
        return Blame.LOST_PEER
    return Blame.WAITED if _WAITED.search(message) else Blame.CAUSE


def with_errors(
    failures: Sequence[Failure], kept: Mapping[tuple[int, int], Lines], folder: RunFolder | None
) -> list[Failure]:
    """Add to each failure its error, its time, and its blame; `core/runs/outcome.py` chooses the first by these.

    kept: the last lines of each rank, by attempt and rank.
    """
    left = sorted({rank for failure in failures for rank in failure.get("left", ())})
    described = []
    for failure in failures:
        place = failure["attempt"], failure["rank"]
        path = observed_folder(folder.path) / f"attempt_{place[0]}" / f"rank_{place[1]}" if folder else None
        observed = read_rank_observed(path, place[1]) if path else None
        described.append({**_with_error(failure, kept.get(place, ()), observed), "left": left})
    return described


def _with_error(failure: Failure, lines: Lines, observed: Observed | None) -> Failure:
    error = _observed_error(observed) or read_printed_error(lines)
    state = observed.status.state if observed and observed.status else None
    code = shell_code(failure["code"])
    blame = error.blame if error else Blame.CAUSE
    if code in (_KILLED, _TERMINATED):
        error = None  # an earlier traceback did not end this process
        blame = Blame.STOPPED if code == _TERMINATED else Blame.CAUSE
    elif code in _CRASHES and (state == "ended" or (state is None and blame is Blame.TEARDOWN)):
        blame = Blame.TEARDOWN
    elif blame is Blame.TEARDOWN:
        blame = Blame.CAUSE
    unix_ns = (error.unix_ns if error else None) or failure["unix_ns"]
    return {
        **failure,
        "time_s": unix_ns / 1e9,
        "blame": blame,
        "ended": state == "ended",
        **_report(failure, error, lines),
    }


def _report(failure: Failure, error: PrintedError | None, lines: Lines) -> dict[str, Any]:
    """Return the failure's error and traceback: as it printed them, else of torch's error file, else its last lines."""
    if error is not None:
        fields = {"type": error.type, "message": error.message, "hint": None, "unix_ns": error.unix_ns}
        return {"error": {**fields, "facts": {}}, "traceback": error.text}
    if failure["error"] is not None:
        return {}
    last = [text for _, text in list(lines)[-_NUM_LAST:]]
    return {"traceback": "\n".join(["its last lines:", *(f"  {text}" for text in last)]) if last else None}


def _observed_error(observed: Observed | None) -> PrintedError | None:
    """Return the exception that ended the main thread, if the observer wrote it."""
    error = observed.error if observed else None
    if error is None or error.thread != "MainThread":
        return None
    message = f"{error.type}: {error.message}"
    text = _PREFIX.sub("", error.traceback.rstrip()) or message
    return PrintedError(error.type.rpartition(".")[2], error.message, text, error.unix_ns, _blame(message))
