"""The file in which a rank leaves its error for the agent that started it: torchrun's own, with Frog's report in it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from frog.core.env import variable

_OURS = "frog"
"""Where our report is, next to torch's `message` and `extraInfo`."""


def leave_error(error: Exception, report: dict[str, Any]) -> None:
    """Leave an error where torchrun looks for it, and `report`, its fields, for an agent that reads them."""
    get_error_handler().record_exception(error)
    if name := variable("TORCHELASTIC_ERROR_FILE"):
        path = Path(name)
        content = json.loads(path.read_text())
        content["message"][_OURS] = report
        path.write_text(json.dumps(content))


def read_error(path: str) -> tuple[dict[str, Any] | None, str | None]:
    """A rank's report and its traceback, as far as it has left them; of a program not Frog's, what torch wrote."""
    message: Any = None
    with contextlib.suppress(OSError, ValueError, KeyError):  # killed before it could speak: the exit code tells
        message = json.loads(Path(path).read_text())["message"]
    if not isinstance(message, dict):
        return (_plain(message) if isinstance(message, str) else None), None
    traceback = (message.get("extraInfo") or {}).get("py_callstack")
    return message.get(_OURS) or _plain(str(message.get("message"))), traceback


def _plain(text: str) -> dict[str, Any]:
    """The report of an error of which only torch's line is known, `ValueError: no frogs`."""
    kind, colon, words = text.partition(": ")
    known = bool(colon) and kind.isidentifier()
    report = {"type": kind, "message": words} if known else {"type": None, "message": text}
    return {**report, "hint": None, "facts": {}, "unix_ns": None}
