"""What goes wrong between ranks, with its facts."""

from __future__ import annotations

from frog.core.facts import Cause


class CollectiveError(RuntimeError):
    """A collective that could not be completed. A RuntimeError, as those of other backends are."""

    def __init__(self, message: str, cause: Cause | None = None, peer: int | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.peer = peer
        """The rank, within the group, at the other end; None if no single one is known."""


class PeerClosed(CollectiveError):
    """The other end of a connection is gone."""

    def __init__(self, peer: int, why: str = "it has left") -> None:
        super().__init__(f"rank {peer} of the group closed its connection: {why}", "closed", peer)


class Alarm(CollectiveError):
    """A peer has left, or calls for an agreement about who is left."""

    def __init__(self, peer: int) -> None:
        super().__init__(f"rank {peer} of the group has left, or asks who is left", "closed", peer)


class TimedOut(CollectiveError):
    """No byte went or came in time."""

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
    """A frame or a connection that is not of this group: a stranger, another version, a replay, or damaged."""
