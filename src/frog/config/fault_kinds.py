"""Every way to fail that the fault language knows, each one entry: where it can happen, and what must be seen of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frog.runs.vocabulary import PHASES

FULL_DEVICE = Path("/dev/full")
"""Linux's own: to write there is ENOSPC."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to fail: what there is to know of it. `_ACTS` in chaos/rank.py does it."""

    name: str
    what: str
    """In a line."""
    phases: tuple[str, ...] = PHASES
    """Where it can happen."""
    default: str = "reduce"
    """Where it does if nothing is said."""
    own: tuple[str, ...] = ()
    """Fields that it alone has."""
    needs: Literal["peers", "network", "full_device", "own_backend"] | None = None
    """What there must be for it to happen."""
    ends: bool = True
    """Whether the run cannot go on after it."""

    # what it does

    collective: Literal["resized", "left_out", "added"] | None = None
    """What becomes of a collective of this rank."""
    damages_checkpoint: bool = False
    """True if it damages this rank's part of the step's checkpoint once that is whole, and then kills the rank."""
    spoils_gradient: bool = False
    of_node: bool = False
    """Whether it meets the rank's whole node."""
    severs: bool = False
    """Whether connections go and processes stay."""
    survivable: bool = False
    """True if the other ranks can continue without this one (comm.on_loss = "shrink")."""

    # what must be seen of it

    peers_wait: bool = False
    """Whether the other ranks' last collective is one in which they waited for this rank."""
    named_first: bool = False
    """Whether this rank is the first that the user is told of; else it may be one that could not follow it."""
    words: str = ""
    """What the user must be told."""
    traceback: bool = False
    """Whether a traceback is shown, since the error is the program's own."""

    @property
    def alters_collective(self) -> bool:
        """Whether something else stands in place of a collective."""
        return self.collective in ("resized", "left_out")

    def missing(self, world_size: int, network: bool, own_backend: bool = False) -> str | None:
        """What it needs and such a world, on this system, has not; None if it can happen there."""
        if self.needs == "peers" and world_size == 1:
            return "a world of one rank has no collectives and no connections"
        if self.needs == "network" and not network:
            return 'this world has no network that could be cut; try --nodes 2x1 --network "delay=1ms"'
        if self.needs == "own_backend" and not (own_backend and world_size > 1):
            return "a rank's signs of life are counted in our own collectives; try 2 ranks, --set comm.backend=frog"
        if self.needs == "full_device" and not FULL_DEVICE.exists():
            return f"this system has no {FULL_DEVICE}, the device on which every write fails"
        return None


_WITH_COLLECTIVES = ("reduce", "forward", "backward", "optimize", "evaluate", "checkpoint")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="raise",
            what="its program raises an error that nobody catches",
            peers_wait=True, named_first=True, words="RuntimeError", traceback=True, survivable=True,
        ),
        Kind(
            name="kill",
            what="it is killed (SIGKILL), as by a machine that runs out of memory",
            peers_wait=True, named_first=True, survivable=True,
        ),
        Kind(
            name="midway",
            what="it is killed in the midst of a collective, after `signs` (3) signs of life; needs comm.backend=frog",
            own=("signs", "sent_bytes"), needs="own_backend", peers_wait=True, named_first=True, survivable=True,
        ),
        Kind(
            name="stop",
            what="it is stopped (SIGSTOP): it is there, and does nothing more",
            peers_wait=True, named_first=True, survivable=True,
        ),
        Kind(
            name="slow",
            what="from that step on it takes `seconds` (0.5) longer for the phase",
            default="forward", own=("seconds",), ends=False,
        ),
        Kind(
            name="shape",
            what="its first collective of the phase, or message behind it, has a tensor of half the size",
            phases=_WITH_COLLECTIVES, needs="peers", collective="resized",
        ),
        Kind(
            name="extra",
            what="it starts an all-reduce that no other rank knows of",
            needs="peers", collective="added",
        ),
        Kind(
            name="missing",
            what="it leaves out its first collective of the phase, or the message behind it",
            phases=_WITH_COLLECTIVES, needs="peers", collective="left_out",
        ),
        Kind(
            name="nan",
            what="an element of its gradient is NaN",
            phases=("backward", "reduce"), default="backward", spoils_gradient=True, words="rank {rank}: loss",
        ),
        Kind(
            name="corrupt",
            what="a byte of its part of the step's checkpoint flips, once that is whole; then it is killed",
            phases=("checkpoint",), default="checkpoint", damages_checkpoint=True, peers_wait=True, named_first=True,
        ),
        Kind(
            name="torn",
            what="its part of the step's checkpoint is cut in half, once that is whole; then it is killed",
            phases=("checkpoint",), default="checkpoint", damages_checkpoint=True, peers_wait=True, named_first=True,
        ),
        Kind(
            name="absent",
            what="its part of the step's checkpoint is removed, once that is whole; then it is killed",
            phases=("checkpoint",), default="checkpoint", damages_checkpoint=True, peers_wait=True, named_first=True,
        ),
        Kind(
            name="disk",
            what="the disk is full (ENOSPC) as it writes the step's checkpoint",
            phases=("checkpoint",), default="checkpoint", needs="full_device",
            named_first=True, words="No space left on device",
        ),
        Kind(
            name="port",
            what="all its network connections are closed under it",
            needs="peers", severs=True, peers_wait=True, survivable=True,
        ),
        Kind(
            name="node",
            what="its node goes: all processes there are killed at once",
            of_node=True, peers_wait=True, survivable=True,
        ),
        Kind(
            name="cut",
            what="its node's network is cut, `after_s` (0) seconds later, for `for_s` (ever); needs --network",
            own=("after_s", "for_s"), needs="network", of_node=True, severs=True, peers_wait=True, survivable=True,
        ),
    )
}  # fmt: skip
