"""Errors between ranks, with their facts."""

from __future__ import annotations

from frog.core.errors import Cause


class CollectiveError(RuntimeError):
    """A collective that could not be completed. A RuntimeError, like the errors of other backends."""

    def __init__(self, message: str, cause: Cause | None = None, peer: int | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.peer = peer
        """The peer's rank within the group; None if no single peer is known."""


class PeerClosed(CollectiveError):
    """The peer has closed its end of a connection."""

    def __init__(self, peer: int, why: str = "it has left") -> None:
        super().__init__(f"rank {peer} of the group closed its connection: {why}", "closed", peer)


class Alarm(CollectiveError):
    """A peer has left, or asks for an agreement on the surviving ranks."""

    def __init__(self, peer: int) -> None:
        super().__init__(f"rank {peer} of the group has left, or asks which ranks remain", "closed", peer)


class TimedOut(CollectiveError):
    """No byte was sent or received in time."""

    def __init__(self, waited_s: float, peers: list[int]) -> None:
        names = ", ".join(map(str, sorted(set(peers))))
        super().__init__(
            f"timed out: nothing from rank {names} of the group for {waited_s:.1f} s", "timed_out", peers[0]
        )


class Mismatch(CollectiveError):
    """Two ranks are in different collectives, or in the same one with different sizes."""

    def __init__(self, message: str, peer: int) -> None:
        super().__init__(message, "mismatch", peer)


class Refused(CollectiveError):
    """A frame or connection that does not belong to this group: a stranger, another version, a replay, or damage."""
