"""Every kind of fault that the fault language knows: where it can happen, and what the user must see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frog.core.runs.vocabulary import PHASES

FULL_DEVICE = Path("/dev/full")
"""A Linux device on which every write fails with ENOSPC."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of fault. `_ACTS` in measure/chaos/chaos_rank.py injects it."""

    name: str
    what: str
    """One-line description."""
    phases: tuple[str, ...] = PHASES
    """Phases in which it can happen."""
    default: str = "reduce"
    """The phase if the fault names none."""
    own: tuple[str, ...] = ()
    """Fields that only this kind has."""
    needs: Literal["peers", "network", "full_device", "own_backend"] | None = None
    """What the world must have for it to happen."""
    ends: bool = True
    """True if the run cannot continue after it."""

    # its effects

    collective: Literal["resized", "left_out", "added"] | None = None
    """How it changes a collective of this rank."""
    damages_checkpoint: bool = False
    """True if it damages this rank's part of the step's checkpoint once that is complete, then kills the rank."""
    spoils_gradient: bool = False
    of_node: bool = False
    """True if it affects all ranks of the node."""
    severs: bool = False
    """True if connections close while processes keep running."""
    survivable: bool = False
    """True if the other ranks can continue without this one (comm.on_loss = "shrink")."""

    # what the user must see

    peers_wait: bool = False
    """True if the other ranks' last collective is one in which they waited for this rank."""
    named_first: bool = False
    """True if the first rank that Frog reports must be this one; otherwise it may be one that lost this rank."""
    words: str = ""
    """Text that the report must contain."""
    traceback: bool = False
    """True if Frog shows a traceback, because the program itself raised the error."""

    @property
    def alters_collective(self) -> bool:
        """True if the rank skips a collective or replaces it with another."""
        return self.collective in ("resized", "left_out")

    def missing(self, world_size: int, network: bool, own_backend: bool = False) -> str | None:
        """Return why this fault cannot happen in such a world on this system; None if it can."""
        if self.needs == "peers" and world_size == 1:
            return "a world of one rank has no collectives and no connections"
        if self.needs == "network" and not network:
            return 'this world has no simulated network to cut; try --nodes 2x1 --network "delay=1ms"'
        if self.needs == "own_backend" and not (own_backend and world_size > 1):
            return "only Frog's own backend counts a rank's signs of life; try 2 ranks, --set comm.backend=frog"
        if self.needs == "full_device" and not FULL_DEVICE.exists():
            return f"this system has no {FULL_DEVICE}, the device on which every write fails"
        return None


_WITH_COLLECTIVES = ("reduce", "forward", "backward", "optimize", "evaluate", "checkpoint")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="raise",
            what="the program raises an error that it does not catch",
            peers_wait=True, named_first=True, words="RuntimeError", traceback=True, survivable=True,
        ),
        Kind(
            name="kill",
            what="the process is killed (SIGKILL), as if the machine had run out of memory",
            peers_wait=True, named_first=True, survivable=True,
        ),
        Kind(
            name="midway",
            what="killed during a collective, after `signs` (3) signs of life; needs comm.backend=frog",
            own=("signs", "sent_bytes"), needs="own_backend", peers_wait=True, named_first=True, survivable=True,
        ),
        Kind(
            name="stop",
            what="the process is stopped (SIGSTOP): it still exists but does nothing",
            peers_wait=True, named_first=True, survivable=True,
        ),
        Kind(
            name="slow",
            what="from this step on, the phase takes `seconds` (0.5) longer",
            default="forward", own=("seconds",), ends=False,
        ),
        Kind(
            name="shape",
            what="the first collective of the phase, or the message after it, has a tensor of half the size",
            phases=_WITH_COLLECTIVES, needs="peers", collective="resized",
        ),
        Kind(
            name="extra",
            what="the rank starts an all-reduce that no other rank starts",
            needs="peers", collective="added",
        ),
        Kind(
            name="missing",
            what="the rank skips its first collective of the phase, or the message after it",
            phases=_WITH_COLLECTIVES, needs="peers", collective="left_out",
        ),
        Kind(
            name="nan",
            what="one element of the rank's gradient is NaN",
            phases=("backward", "reduce"), default="backward", spoils_gradient=True, words="rank {rank}: loss",
        ),
        Kind(
            name="corrupt",
            what="one byte of the rank's part of the step's complete checkpoint flips, then the rank is killed",
            phases=("checkpoint",), default="checkpoint", damages_checkpoint=True, peers_wait=True, named_first=True,
        ),
        Kind(
            name="torn",
            what="the rank's part of the step's complete checkpoint is truncated to half, then the rank is killed",
            phases=("checkpoint",), default="checkpoint", damages_checkpoint=True, peers_wait=True, named_first=True,
        ),
        Kind(
            name="absent",
            what="the rank's part of the step's complete checkpoint is removed, then the rank is killed",
            phases=("checkpoint",), default="checkpoint", damages_checkpoint=True, peers_wait=True, named_first=True,
        ),
        Kind(
            name="disk",
            what="the disk is full (ENOSPC) while the rank writes the step's checkpoint",
            phases=("checkpoint",), default="checkpoint", needs="full_device",
            named_first=True, words="No space left on device",
        ),
        Kind(
            name="port",
            what="all network connections of the rank are closed",
            needs="peers", severs=True, peers_wait=True, survivable=True,
        ),
        Kind(
            name="node",
            what="the node is lost: all its processes are killed at the same time",
            of_node=True, peers_wait=True, survivable=True,
        ),
        Kind(
            name="cut",
            what="the node's network is cut, `after_s` (0) seconds later, for `for_s` (forever); needs --network",
            own=("after_s", "for_s"), needs="network", of_node=True, severs=True, peers_wait=True, survivable=True,
        ),
    )
}  # fmt: skip
