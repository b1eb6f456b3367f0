"""What the launcher and the switch between pretended nodes say to each other: a line of JSON each."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from frog.core.schema import Name, Natural, Typed
from frog.launch.network.link import Link


class SwitchSettings(Typed, frozen=True):
    """What the switch is started with."""

    num_nodes: Annotated[int, Meta(ge=1, le=64)]
    link: Link


class SwitchRequest(Typed, frozen=True):
    """Cut a node off, heal its link, or say what went over the links."""

    act: Literal["cut", "heal", "describe"]
    node_rank: Natural | None


class SwitchReady(Typed, frozen=True):
    """The first answer: how a program enters the nodes, or why there are none."""

    error: str | None = None
    descriptors: Name = ""
    """The folder of the switch's open files."""
    nodes: list[list[Natural]] = field(default_factory=list)
    """Which of them are the namespaces of each node."""
