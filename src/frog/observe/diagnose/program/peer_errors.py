"""Errors that another rank's end caused, and the call or message in which a rank met them.

The texts are those of torch, gloo and NCCL.
"""

from __future__ import annotations

import re
from dataclasses import replace

from frog.core.runs.observed import Message
from frog.observe.diagnose.program.code_lines import collective_frames, is_user_file
from frog.observe.diagnose.program.evidence import Call, Evidence, RankEvidence, SeenError, same_line

_OF_A_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|lost)|broken pipe|timed out waiting|connection timed out|"
    r"ncclremoteerror|ncclsystemerror|ncclinternalerror|ncclcommabort|communicator was aborted|"
    r"watchdog caught collective operation timeout|collective operation timeout|"
    r"failed to recv|failed to send|socket ?(timeout|error)|remote process exited|peer closed|"
    r"wait timeout|store.*timeout|timeout after \d+ms waiting|application timeout caused pair closure|"
    r"connectfullmesh failed|readfromstore|tcpstore|unexpected eof|no more data|read\d* ?error|"
    r"\bmonitoredbarrier\b.*(failed|timed out|not pass)|ranks? .* failed to pass monitoredbarrier|"
    r"successfully reached monitoredbarrier, but",
    re.IGNORECASE,
)
_CONNECTION_CLOSED = re.compile(
    r"(connection|pair).{0,20}(closed|reset)|broken pipe|remote process exited|peer closed|unexpected eof|"
    r"got 0 bytes|ncclremoteerror",
    re.IGNORECASE,
)
_LOADER = re.compile(r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)")
_COMMUNICATION = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistQueueEmptyError", "CommError")
_NOT_OF_A_PEER = re.compile(r"invalid (argument|usage)|ncclinvalid|mismatch", re.IGNORECASE)
_MISMATCH = re.compile(
    r"op\.preamble\.length <= op\.nbytes|preamble|detected mismatch between collectives|"
    r"collective.*(mismatch|does not match)|ncclinvalidargument.*mismatch|received data size doesn't match",
    re.IGNORECASE,
)


def lost_peers(error: SeenError) -> bool:
    """True if a communication error shows that another rank ended or did not come."""
    if is_mismatch(error) or lost_loader(error):
        return False
    if error.short_type in _COMMUNICATION:
        return not _NOT_OF_A_PEER.search(error.message) or bool(_OF_A_PEER.search(error.message))
    return error.short_type in ("RuntimeError", "TimeoutError", "ConnectionError", "OSError", "EOFError") and bool(
        _OF_A_PEER.search(error.message)
    )


def lost_loader(error: SeenError) -> bool:
    """True if a rank lost a worker of its own DataLoader."""
    if _LOADER.search(error.message):
        return True
    inside = any("torch/utils/data/" in frame.file.replace("\\", "/") for frame in error.frames)
    return inside and error.short_type in (
        "ConnectionResetError",
        "ConnectionRefusedError",
        "EOFError",
        "BrokenPipeError",
    )


def in_collective(error: SeenError) -> bool:
    """True if torch.distributed itself raised an error, from what it had received."""
    return bool(collective_frames(error.frames[-4:]))


def is_mismatch(error: SeenError) -> bool:
    """True if a backend reports that ranks called collectives of different sizes or kinds."""
    return bool(_MISMATCH.search(error.message))


def is_mismatch_text(text: str) -> bool:
    """True for a line of a log in which a backend reports that ranks called different collectives."""
    return bool(_MISMATCH.search(text))


def timed_out(error: SeenError) -> bool:
    """True if a collective waited until its time-out."""
    return bool(re.search(r"time(d)?[ -]?out", error.message, re.IGNORECASE))


def saw_a_peer_end(rank: RankEvidence) -> bool:
    """True if a rank's error shows that the process of a peer ended, rather than that it did not answer."""
    error = rank.error
    return (
        error is not None
        and lost_peers(error)
        and not timed_out(error)
        and bool(_CONNECTION_CLOSED.search(error.message))
    )


def own_error(rank: RankEvidence) -> SeenError | None:
    """Return the error that ended a rank, if it is its own."""
    error = rank.error
    if error is None or not error.fatal or error.short_type in ("KeyboardInterrupt", "SystemExit", "SignalException"):
        return None
    return None if lost_peers(error) or is_mismatch(error) else error


def is_victim(rank: RankEvidence) -> bool:
    """True if a rank failed because of another: a lost connection, or the launcher's SIGTERM."""
    if rank.error is not None and rank.error.fatal:
        return lost_peers(rank.error)
    return rank.exit_code == -15


# ---- the call in which a rank failed ---------------------------------------------------------------------------------


def mark_failed_calls(evidence: Evidence) -> None:
    """Mark the collective in which a rank failed as not completed; torch marks it like those that succeeded."""
    for rank in evidence.ranks.values():
        error = rank.error
        if (
            rank.calls
            and rank.transfer is None
            and error is not None
            and error.fatal
            and (lost_peers(error) or is_mismatch(error))
        ):
            failed = _failed_call(rank)
            if failed is not None:
                _mark_incomplete(rank, failed)


def _failed_call(rank: RankEvidence) -> Call | None:
    """Return the last call from the line of the error; the last call of all if its line is unknown.

    Return None if that line called no collective, but the rank has begun messages: it failed in one of them.
    """
    lines = [rank.error.line, *rank.error.frames] if rank.error is not None else []
    of_line = [call for call in rank.calls if any(same_line(call.line, line) for line in lines)]
    if lines[0:1] != [None] and not of_line and rank.messages is not None and rank.messages.last:
        return None
    return max(of_line or rank.calls, key=lambda call: (call.created_ns or 0, call.seq))


def _mark_incomplete(rank: RankEvidence, failed: Call) -> None:
    """Mark a call and those after it in its group. A record that was written in a hurry has no lines: the error has."""
    rank.calls = [
        replace(call, done=False) if call.group == failed.group and call.seq >= failed.seq else call
        for call in rank.calls
    ]
    error = rank.error
    if error is not None and not any(call.line for call in rank.calls):
        stack = tuple(frame for frame in reversed(error.frames) if is_user_file(frame.file))
        number = rank.calls.index(replace(failed, done=False))
        rank.calls[number] = replace(rank.calls[number], line=error.line, callers=stack)
    if rank.completed.get(failed.group, 0) >= failed.seq:
        rank.completed[failed.group] = failed.seq - 1


# ---- the message for which a rank waits in a method `wait`, among those that it has begun ----------------------------

_OTHER_SIDE = {"isend": "irecv", "irecv": "isend"}


def add_awaited_messages(evidence: Evidence) -> None:
    """Add to each rank that waited for a message which one it was.

    It is the first one that the other rank has not begun: messages between two ranks with one tag are numbered alike.
    """
    for rank in evidence.ranks.values():
        if rank.transfer is None and rank.messages is not None:
            rank.transfer = _awaited_message(evidence, rank, rank.messages.last)


def _awaited_message(evidence: Evidence, rank: RankEvidence, messages: list[Message]) -> Message | None:
    pending = [message for message in messages if not message.done]
    if rank.error is not None:
        possible = messages if lost_peers(rank.error) and not in_collective(rank.error) else []
    else:
        possible = pending if rank.in_message else []
    unmet = (message for message in possible if not _is_met(evidence, rank, message))
    return next(unmet, pending[0] if pending and possible else _to_crashed(evidence, possible))


def _to_crashed(evidence: Evidence, messages: list[Message]) -> Message | None:
    """Return the last message to or from a rank whose record was lost in a crash."""
    others = ((message, evidence.ranks.get(message.peer or 0)) for message in reversed(messages))
    return next((message for message, other in others if other and other.crash and other.messages is None), None)


def _is_met(evidence: Evidence, rank: RankEvidence, message: Message) -> bool:
    """True if the other rank has begun its side of a message."""
    other = evidence.ranks.get(message.peer) if message.peer is not None else None
    if other is None or other.messages is None:
        return message.done
    if not (other.messages.whole and rank.messages is not None and rank.messages.whole):
        return message.done
    side = [_OTHER_SIDE[message.op], rank.rank, message.tag, message.group]
    return any(own == side and number >= message.number for *own, number in other.messages.counts)
