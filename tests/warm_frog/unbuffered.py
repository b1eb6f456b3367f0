"""Unbuffered output, as under `python -u`."""

from __future__ import annotations

import io
import sys
from typing import Any


def unbuffer() -> None:
    """Replace stdout and stderr by streams without buffers."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        was, raw = getattr(sys, name), io.FileIO(number, "w", closefd=False)
        raw.name = f"<{name}>"
        stream: Any = io.TextIOWrapper(raw, was.encoding, was.errors, write_through=True)
        stream.mode = "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
