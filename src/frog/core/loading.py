"""Loading what is large: torch makes 250,000 objects and no garbage, and looking for that takes a third of a start."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import modules without looking for garbage, then or later: what they made stays until the process ends."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
