"""Frog: distributed training, learned on a laptop and carried to a cluster with the same code."""

from __future__ import annotations

from frog.core.startup import end_at_interrupt, is_command, is_own, use_utf8

if is_command():
    end_at_interrupt()  # the imports below and those of frog.cli take a while
if is_own():
    use_utf8()

from typing import TYPE_CHECKING, Any

from frog.core.env import wait_passively
from frog.core.old_names import accept_old_names
from frog.products import register_products

if TYPE_CHECKING:
    from frog.observe.record import record

__all__ = ["record"]
__version__ = "0.1.0"

accept_old_names()
register_products()
wait_passively()  # every program of Frog's imports this first, and torch reads the setting when it loads


def load_ipython_extension(shell: Any) -> None:
    """Register `%%ranks` in a notebook: `%load_ext frog`."""
    from frog.launch.cells.cell_magics import load_magics

    load_magics(shell)


def unload_ipython_extension(shell: Any) -> None:
    """End the notebook's world: `%unload_ext frog`."""
    from frog.launch.cells.cell_magics import unload_magics

    unload_magics(shell)


def __getattr__(name: str) -> Any:
    """Import `frog.record` when a program uses it: commands and ranks of Frog do not need it."""
    if name == "record":
        from frog.observe.record import record

        return record
    raise AttributeError(f"module 'frog' has no attribute {name!r}")
