"""What torchrun leaves: the error file of a rank, and the table of failures that ends its output."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from frog.observe.diagnose.program.evidence import Evidence, SeenError
from frog.observe.diagnose.program.seen_errors import seen_errors

_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*:\s?(.*)$")
_RANK = re.compile(r"(\d{1,7}) \(local_rank: \d{1,7}\)")
_CODE = re.compile(r"(-?\d{1,10}) \(pid: (\d{1,10})\)")


class FailureTable:
    """The blocks below `ChildFailedError`: one per failed rank, the one that torchrun saw first last."""

    def __init__(self, name: str) -> None:
        self.name, self.found, self._named = name, False, False
        self._rank: int | None = None
        self._host = ""
        self._codes: dict[int, tuple[int, int, str]] = {}

    def read(self, text: str) -> None:
        """Read a line of a log."""
        found = _FIELD.match(text)
        if found is None:
            self._named = self._named or "torch.distributed." in text or "torchrun" in text
            return
        key, value = found[1], found[2]
        if key == "host":
            self._host = value.strip()[:255]
        elif key == "rank" and (rank := _RANK.match(value)):
            self._rank = int(rank[1])
        elif key == "exitcode" and self._rank is not None and (code := _CODE.match(value)):
            self._codes[self._rank] = int(code[1]), int(code[2]), self._host
            self._rank, self.found = None, True

    def add_to(self, evidence: Evidence) -> None:
        """Add the exit codes."""
        evidence.by_torchrun |= self.found or self._named
        for number, (code, pid, host) in self._codes.items():
            if number >= 2**20:
                continue
            rank = evidence.of(number)
            rank.add_source(self.name)
            rank.host = rank.host or host or None
            if rank.exit_code is None:
                rank.exit_code, rank.pid, rank.exit_source = code, rank.pid or pid, self.name


def decode_error_file(data: bytes) -> dict[str, Any] | None:
    """Return the content of a file that TORCHELASTIC_ERROR_FILE names; None for any other data."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("message"), (dict, str)) else None


def error_text(value: dict[str, Any]) -> tuple[str, str, int | None]:
    """Return the message, the traceback's text and the Unix time of an error file."""
    message = value["message"]
    if isinstance(message, str):
        return message[:4096], "", None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stamp = str(extra.get("timestamp", ""))
    seconds = int(stamp) if re.fullmatch(r"\d{1,11}", stamp) else None
    return str(message.get("message", ""))[:4096], str(extra.get("py_callstack", ""))[: 1 << 20], seconds


def add_error_file(evidence: Evidence, value: dict[str, Any], name: str, rank_of_file: int | None) -> None:
    """Add a rank's error."""
    message, traceback, seconds = error_text(value)
    kind, _, rest = message.partition(":")
    found = next(reversed(seen_errors(traceback.split("\n"), name)), None)
    error = SeenError(
        found.type if found else kind if re.fullmatch(r"[\w.]{1,100}", kind) else "Error",
        found.message if found else rest.strip() or message,
        found.line if found else None,
        found.frames if found else (),
        seconds * 10**9 if seconds is not None else None,
        name,
    )
    if rank_of_file is None:
        evidence.loose_errors.append(error)
        return
    rank = evidence.of(rank_of_file)
    rank.add_source(name)
    if rank.error is None or rank.error.line is None:
        rank.error = error
