"""Faster imports: torch creates 250,000 objects and no garbage, and garbage collection takes a third of the start."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import modules without garbage collection, now or later: their objects stay until the process ends."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
