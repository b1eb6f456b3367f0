"""Messages between the launcher and the switch of simulated nodes: one line of JSON each."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from frog.core.schema import Name, Natural, Typed
from frog.launch.network.link import Link


class SwitchSettings(Typed, frozen=True):
    """Arguments of the switch."""

    num_nodes: Annotated[int, Meta(ge=1, le=64)]
    link: Link


class SwitchRequest(Typed, frozen=True):
    """A request to cut off a node, to heal its link, or to describe the links."""

    act: Literal["cut", "heal", "describe"]
    node_rank: Natural | None


class SwitchReady(Typed, frozen=True):
    """The first answer: how programs enter the nodes, or the error."""

    error: str | None = None
    descriptors: Name = ""
    """Folder of the switch's open file descriptors."""
    nodes: list[list[Natural]] = field(default_factory=list)
    """Descriptors of each node's namespaces."""
