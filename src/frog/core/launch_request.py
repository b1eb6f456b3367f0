"""What a rank asks the launcher for: faults of whole nodes, which no rank can bring about by itself."""

from __future__ import annotations

from typing import ClassVar, Literal

from frog.core.schema import Natural, Typed


class LaunchRequest(Typed, frozen=True):
    """A file in the launcher's folder `requests`; the launcher puts NAME.done next to it when that is so."""

    KIND: ClassVar[str] = "a request to the launcher"

    act: Literal["kill_node", "cut", "heal"]
    node: Natural
