"""The file in which a rank leaves its error for the agent that started it: torchrun's own file, plus Frog's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from frog.core.env import variable
from frog.core.errors import CommError
from frog.core.schema import Typed, read_typed

_OURS = "frog"
"""The key of our report, next to torch's `message` and `extraInfo`."""


class _Extra(Typed, frozen=True):
    py_callstack: str | None = None


class _OwnError(Typed, frozen=True):
    message: str | None = None
    extraInfo: _Extra | None = None
    frog: dict[str, Any] | None = None
    """Our report, under the key `_OURS`."""


class _ErrorFile(Typed, frozen=True):
    message: _OwnError | str


def leave_error(error: Exception, report: dict[str, Any]) -> None:
    """Write an error where torchrun looks for it, with `report`, its fields, for an agent that reads them."""
    get_error_handler().record_exception(error)
    if name := variable("TORCHELASTIC_ERROR_FILE"):
        path = Path(name)
        content = json.loads(path.read_text())
        content["message"][_OURS] = report
        path.write_text(json.dumps(content))


def read_error(path: str, failed_s: float) -> tuple[dict[str, Any] | None, str | None]:
    """Return a rank's report and its traceback, if it left them; for a program other than Frog, torch's text.

    failed_s: the time of day at which it failed, for a report without one.
    """
    try:
        own = read_typed(Path(path), _ErrorFile, error=CommError).message
    except (FileNotFoundError, CommError):  # killed before or while it wrote: the exit code shows the cause
        return None, None
    if isinstance(own, str):
        return _plain(own, failed_s), None
    traceback = own.extraInfo.py_callstack if own.extraInfo is not None else None
    return own.frog or _plain(str(own.message), failed_s), traceback


def _plain(text: str, failed_s: float) -> dict[str, Any]:
    """Build the report of an error for which only torch's line is known, such as `ValueError: no frogs`."""
    kind, colon, words = text.partition(": ")
    if not colon or not kind.isidentifier():
        kind, words = "Error", text
    return {"type": kind, "message": words, "hint": None, "facts": {}, "unix_ns": int(failed_s * 1e9)}
