"""A rank's requests to the launcher: faults of whole nodes, and the end of ranks that were left out."""

from __future__ import annotations

from typing import ClassVar, Literal

from frog.core.schema import Natural, Typed


class LaunchRequest(Typed, frozen=True):
    """A file in the launcher's folder `requests`; the launcher creates NAME.done next to it when done."""

    KIND: ClassVar[str] = "a request to the launcher"

    act: Literal["kill_node", "cut", "heal", "end_rank"]
    node: Natural = 0
    pid: Natural | None = None
    """Process id of the rank to end."""
