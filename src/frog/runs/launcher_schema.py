"""What `frog run` says of a run: a class for each event of `events/launcher.jsonl`, with its fields."""

from __future__ import annotations

from typing import Final, Literal

from frog.core.schema import Typed
from frog.runs.schema import Beat, Count, Event, ExitCode, Rank, ReportedError, Size, fields_of


class LaunchedNode(Typed, gc=False, frozen=True, kw_only=True):
    """A node as the launcher began it."""

    node: Rank
    host: str
    address: str


class LinkSettings(Typed, gc=False, frozen=True, kw_only=True):
    """What was asked of the links between pretended nodes."""

    rate_bits_per_s: float
    delay_s: float
    mtu: Count
    loss: float = 0.0


class LinkFigures(Typed, gc=False, frozen=True, kw_only=True):
    """What the switch between pretended nodes did: how late it was with a frame."""

    mean_late_s: float
    worst_late_s: float


class LauncherEvent(Event, frozen=True, kw_only=True):
    """A line of `events/launcher.jsonl`: when, as time of day."""

    unix_ns: Count


class LaunchEvent(LauncherEvent, tag="launch", frozen=True, kw_only=True):
    """A `frog run` began."""

    pid: Count
    nodes: list[LaunchedNode]
    ranks_per_node: Rank
    program: list[str]
    restarts: Count
    network: LinkSettings | None


class WorldEvent(LauncherEvent, tag="world", frozen=True, kw_only=True):
    """A node's agent started its ranks."""

    attempt: Rank
    """Counts the attempts of this launch from 0."""
    node: Rank
    """The pretended machine."""
    node_rank: Rank
    """The number that the node got in this attempt."""
    ranks: list[Rank]
    world_size: Size
    master_addr: str
    master_port: Count
    pids: list[Count]
    """Of the ranks, in their order."""


class ExitEvent(LauncherEvent, tag="exit", frozen=True, kw_only=True):
    """A rank failed, as its agent saw it."""

    attempt: Rank
    rank: Rank
    node: Rank
    node_rank: Rank
    pid: Count
    code: ExitCode
    error: ReportedError | None
    """What it left of its error."""
    traceback: str | None


class ReplaceEvent(LauncherEvent, tag="replace", frozen=True, kw_only=True):
    """In the place of a rank that was lost another was started, to join the run."""

    attempt: Rank
    rank: Rank
    node: Rank
    node_rank: Rank
    lost: Count
    """The process that was lost, and the one that was started:"""
    pid: Count
    number: Count
    """How many were started so far, with this one."""


class HangEvent(LauncherEvent, tag="hang", frozen=True, kw_only=True):
    """A rank was found hanging, and killed."""

    attempt: Rank
    rank: Rank
    pid: Count
    kind: Literal["silent", "stuck"]
    """No heartbeat, or too long in one collective."""
    waited_s: float
    heartbeat: Beat


class LeftOutEvent(LauncherEvent, tag="left_out", frozen=True, kw_only=True):
    """A rank without which the others went on was still there, and was killed."""

    attempt: Rank
    rank: Rank
    pid: Count


class NodeEvent(LauncherEvent, tag="node", frozen=True, kw_only=True):
    """A node's agent ended."""

    node: Rank
    host: str
    code: ExitCode


class ReturnEvent(LauncherEvent, tag="return", frozen=True, kw_only=True):
    """A node that had gone was started again."""

    node: Rank
    host: str


class LauncherEndEvent(LauncherEvent, tag="end", frozen=True, kw_only=True):
    """`frog run` ends."""

    code: ExitCode
    network: LinkFigures | None
    """What went over the nodes' links."""


AnyLauncherEvent = (
    LaunchEvent
    | WorldEvent
    | ExitEvent
    | ReplaceEvent
    | HangEvent
    | LeftOutEvent
    | NodeEvent
    | ReturnEvent
    | LauncherEndEvent
)
"""A line of `events/launcher.jsonl`."""

LAUNCHER_FIELDS: Final = {name: fields - {"unix_ns"} for name, fields in fields_of(AnyLauncherEvent).items()}
"""Of each event, by its name, the fields besides when it was."""
