"""Counts how often DDP's `no_sync` had no effect: its forward decides whether a backward averages the gradients.

A program that enters `no_sync` only around the backward gets the right numbers, but sends as much as without it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from . import frames


class NoSync:
    """Watches the contexts of all DDP modules of the process."""

    def __init__(self) -> None:
        self._is_watching = False
        self._entered, self._without_effect = 0, 0
        self._line: dict[str, Any] | None = None

    def watch(self) -> None:
        """Wrap the method `no_sync`, once the program has imported DDP."""
        if self._is_watching:
            return
        kind: Any = getattr(sys.modules.get("torch.nn.parallel.distributed"), "DistributedDataParallel", None)
        if hasattr(kind, "no_sync"):
            self._is_watching = True
            kind.no_sync = self._watched(kind.no_sync)

    def seen(self) -> dict[str, Any] | None:
        """Return the counts for status.json; None if the program has not used `no_sync`."""
        counts = {"entered": self._entered, "without_effect": self._without_effect, "line": self._line}
        return counts if self._entered else None

    def _watched(self, no_sync: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(no_sync)
        @contextlib.contextmanager
        def watched(ddp: Any) -> Iterator[None]:
            before = _collectives(ddp)
            with no_sync(ddp):
                yield
            self._note(ddp, before)

        return watched

    def _note(self, ddp: Any, before: int | None) -> None:
        """Count a context. It had no effect if its collectives increased and DDP's last forward was outside."""
        self._entered += 1
        if getattr(ddp, "require_forward_param_sync", False) and _collectives(ddp) != before:
            self._without_effect += 1
            self._line = self._line or frames.user_line(frames.stack_of(sys._getframe(1)))


def _collectives(ddp: Any) -> int | None:
    """Return how many collectives the process group of a module has called; None if its backend does not count."""
    try:
        return int(ddp.process_group._get_sequence_number_for_group())
    except Exception:
        return None
