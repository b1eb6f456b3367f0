"""The events of `frog run` in `events/launcher.jsonl`: one class per event."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from frog.core.runs.event_schema import Beat, Count, Event, ExitCode, Rank, ReportedError, Size, fields_of
from frog.core.schema import Typed


class LaunchedNode(Typed, gc=False, frozen=True, kw_only=True):
    """A node at launch."""

    node: Rank
    host: str
    address: str


class LinkSettings(Typed, gc=False, frozen=True, kw_only=True):
    """Requested properties of the links between simulated nodes."""

    rate_bits_per_s: float
    delay_s: float
    mtu: Count
    loss: float = 0.0


class LinkFigures(Typed, gc=False, frozen=True, kw_only=True):
    """Delay of frames in the switch between simulated nodes, beyond the requested one."""

    mean_late_s: float
    worst_late_s: float


class LauncherEvent(Event, frozen=True, kw_only=True):
    """A line of `events/launcher.jsonl`, with its Unix time."""

    unix_ns: Count


class LaunchEvent(LauncherEvent, tag="launch", frozen=True, kw_only=True):
    """`frog run` started."""

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
    """The simulated machine."""
    node_rank: Rank
    """Node rank in this attempt."""
    ranks: list[Rank]
    world_size: Size
    master_addr: str
    master_port: Count
    pids: list[Count]
    """Process ids, in rank order."""


class ExitEvent(LauncherEvent, tag="exit", frozen=True, kw_only=True):
    """A rank failed, as reported by its agent."""

    attempt: Rank
    rank: Rank
    node: Rank
    node_rank: Rank
    pid: Count
    code: ExitCode
    error: ReportedError | None
    """The error that the rank reported."""
    traceback: str | None
    left: list[Rank] = msgspec.field(default_factory=list)
    """Ranks of its node that had already ended without an error."""


class ReplaceEvent(LauncherEvent, tag="replace", frozen=True, kw_only=True):
    """A new process was started to join the run in place of a lost rank."""

    attempt: Rank
    rank: Rank
    node: Rank
    node_rank: Rank
    lost: Count
    """Process id of the lost rank; `pid` is the new process."""
    pid: Count
    number: Count
    """Number of replacements so far, including this one."""


class HangEvent(LauncherEvent, tag="hang", frozen=True, kw_only=True):
    """A hanging rank was detected and killed."""

    attempt: Rank
    rank: Rank
    pid: Count
    kind: Literal["silent", "stuck"]
    """silent: no heartbeat; stuck: too long in one collective."""
    waited_s: float
    heartbeat: Beat


class StallEvent(LauncherEvent, tag="stall", frozen=True, kw_only=True):
    """A program that is not Frog's made no progress (frog.launch.watchdog)."""

    attempt: Rank
    kind: Literal["hang", "left", "computing"]
    """hang: all ranks wait; left: for a rank that has ended; computing: for a rank that computes."""
    still_s: float
    """Time since the last finished collective."""
    roles: dict[int, Literal["waits", "idle", "computes", "stopped", "ended", "failed"]]
    """What each rank did."""
    text: str
    """The same for people, with the collectives and the lines."""
    ends: bool
    """True if the launcher ended the ranks."""
    stopped: bool = False
    """True if a user stopped the program."""


class LeftOutEvent(LauncherEvent, tag="left_out", frozen=True, kw_only=True):
    """A rank that the others continued without was still alive, and was killed."""

    attempt: Rank
    rank: Rank
    pid: Count


class NodeEvent(LauncherEvent, tag="node", frozen=True, kw_only=True):
    """A node's agent ended."""

    node: Rank
    host: str
    code: ExitCode


class ReturnEvent(LauncherEvent, tag="return", frozen=True, kw_only=True):
    """A lost node was started again."""

    node: Rank
    host: str


class LauncherEndEvent(LauncherEvent, tag="end", frozen=True, kw_only=True):
    """`frog run` ended."""

    code: ExitCode
    network: LinkFigures | None
    """Figures of the links between nodes."""


AnyLauncherEvent = (
    LaunchEvent
    | WorldEvent
    | ExitEvent
    | ReplaceEvent
    | HangEvent
    | StallEvent
    | LeftOutEvent
    | NodeEvent
    | ReturnEvent
    | LauncherEndEvent
)
"""A line of `events/launcher.jsonl`."""

LAUNCHER_FIELDS: Final = {name: fields - {"unix_ns"} for name, fields in fields_of(AnyLauncherEvent).items()}
"""Fields of each event except its time, by event name."""
