"""The proposals that survivors exchange, and the errors that report their agreement: see `survivors.py`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from frog.core.config.run_config import MOST_ELASTIC_RANKS
from frog.train.comm.collectives.errors import CollectiveError

_CALL_BYTES = 48
_PROPOSAL = struct.Struct(f"!?IQQQHIQ{_CALL_BYTES}s")
PROPOSAL_BYTES = _PROPOSAL.size


class WorldChanged(CollectiveError):
    """The collective was not completed, and its buffers are unchanged. All members raise this."""

    def __init__(self, before: Sequence[int], members: Sequence[int]) -> None:
        self.members = tuple(members)
        self.lost, self.joined = tuple(set(before) - set(members)), tuple(set(members) - set(before))
        changes = [
            f"rank {', '.join(map(str, sorted(ranks)))} of the group {what}"
            for ranks, what in ((self.lost, "was lost"), (self.joined, "joined"))
            if ranks
        ]
        super().__init__(
            f"{'; '.join(changes) or 'membership unchanged'}; the group has {len(members)} members now", "closed"
        )


class LeftOut(CollectiveError):
    """The others continue without this rank, or too few ranks remain to continue."""


@dataclass(frozen=True)
class Proposal:
    """A rank's proposal for the next epoch."""

    is_last_word: bool
    """True in the final message to an excluded rank."""
    epoch: int
    alive: frozenset[int]
    completed: int
    """Collectives whose result this rank has; after its decision, collectives whose result all have."""
    settled: int
    """Collectives that the last decision counted as completed."""
    port: int
    begun: tuple[int, int]
    """Epoch and number of the last collective that this rank began."""
    call: str
    """The description of that collective, the same on all ranks. Empty if this rank began none."""

    def pack(self) -> bytes:
        mask = sum(1 << rank for rank in self.alive)
        numbers = (self.completed, self.settled, self.port, *self.begun)
        return _PROPOSAL.pack(self.is_last_word, self.epoch, mask, *numbers, self.call.encode())

    @staticmethod
    def unpack(data: bytes | bytearray) -> Proposal:
        last, epoch, mask, completed, settled, port, epoch_begun, number, call = _PROPOSAL.unpack(data)
        alive = frozenset(rank for rank in range(MOST_ELASTIC_RANKS) if mask >> rank & 1)
        words = call.rstrip(b"\0").decode(errors="replace")
        return Proposal(last, epoch, alive, completed, settled, port, (epoch_begun, number), words)
