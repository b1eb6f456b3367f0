"""Tell an error of a rank from one that another rank's end caused. The texts are torch's and NCCL's."""

from __future__ import annotations

import re

from frog.observe.diagnose.program.evidence import RankEvidence, SeenError
from frog.observe.diagnose.program.places import collective_frames

_OF_A_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|lost)|broken pipe|timed out waiting|connection timed out|"
    r"ncclremoteerror|ncclsystemerror|ncclinternalerror|ncclcommabort|communicator was aborted|"
    r"watchdog caught collective operation timeout|collective operation timeout|"
    r"failed to recv|failed to send|socket ?(timeout|error)|remote process exited|peer closed|"
    r"wait timeout|store.*timeout|timeout after \d+ms waiting|application timeout caused pair closure|"
    r"connectfullmesh failed|readfromstore|tcpstore|unexpected eof|no more data|read\d* ?error|"
    r"\bmonitoredbarrier\b.*(failed|timed out|not pass)|ranks? .* failed to pass monitoredbarrier",
    re.IGNORECASE,
)
_CLOSED = re.compile(
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
    return error is not None and lost_peers(error) and not timed_out(error) and bool(_CLOSED.search(error.message))


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
