"""What survivors say to each other, and what they come to: see `survivors.py`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from frog.comm.collectives.errors import CollectiveError
from frog.config.run import MOST_ELASTIC_RANKS

_CALL_BYTES = 48
_PROPOSAL = struct.Struct(f"!?IQQQHIQ{_CALL_BYTES}s")
PROPOSAL_BYTES = _PROPOSAL.size


class WorldChanged(CollectiveError):
    """The collective was not completed, its buffers are as they were. All members get this."""

    def __init__(self, before: Sequence[int], members: Sequence[int]) -> None:
        self.members = tuple(members)
        self.lost, self.joined = tuple(set(before) - set(members)), tuple(set(members) - set(before))
        changes = [
            f"rank {', '.join(map(str, sorted(ranks)))} of the group was {what}"
            for ranks, what in ((self.lost, "lost"), (self.joined, "let in"))
            if ranks
        ]
        super().__init__(
            f"{'; '.join(changes) or 'nobody was lost, nobody came'}; they are {len(members)} now", "closed"
        )


class LeftOut(CollectiveError):
    """The others go on without this rank, or it is among too few to go on."""


@dataclass(frozen=True)
class Proposal:
    """What a rank says of the next epoch."""

    is_last_word: bool
    """Said to a rank that is left out."""
    epoch: int
    alive: frozenset[int]
    completed: int
    """Collectives whose result it has; of a rank that has decided meanwhile, those that all had."""
    settled: int
    """Collectives that were agreed on as completed at the last decision."""
    port: int
    begun: tuple[int, int]
    """Of the last collective that it has begun: the epoch, and the number."""
    call: str
    """What that is, the same on all ranks. Empty if it has begun none."""

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
