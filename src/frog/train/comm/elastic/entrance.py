"""Formation of a group of survivors: all ranks at the start, or one by one through the join endpoint."""

from __future__ import annotations

from frog.core.config.run_config import MOST_ELASTIC_RANKS
from frog.core.runs.observer import operation
from frog.train.comm.collectives.cost import Costs
from frog.train.comm.collectives.rendezvous import Book, Peer, Place, meet
from frog.train.comm.elastic.join_endpoint import request_join
from frog.train.comm.elastic.survivors import Survivors


def meet_survivors(
    book: Book,
    rank: int,
    size: int,
    secret: bytes,
    host: str = "127.0.0.1",
    node: str = "",
    timeout_s: float = 60.0,
    patience_s: float = 2.0,
    costs: Costs | None = None,
    memory: bool = True,
) -> Survivors:
    """Connect the ranks at the start of a world. Raises CollectiveError if a rank is missing after `timeout_s`."""
    if size > MOST_ELASTIC_RANKS:
        raise ValueError(f"{size} ranks: at most {MOST_ELASTIC_RANKS} can agree")
    place = Place(rank, size, "survivors", secret, host, node)
    try:
        peers, lines = meet(place, book, timeout_s)
    finally:
        place.close()
    if rank == 0:
        book.set("costs", (costs or Costs()).to_text())
    return Survivors(
        rank, {peer.rank: peer for peer in peers}, lines, range(size), secret, costs=Costs.from_text(book.get("costs")),
        timeout_s=timeout_s, patience_s=patience_s, memory=memory,
    )  # fmt: skip


@operation("entry")
def join_survivors(
    endpoint: Peer,
    secret: bytes,
    host: str = "127.0.0.1",
    node: str = "",
    *,
    timeout_s: float,
    patience_s: float = 2.0,
    memory: bool = True,
) -> Survivors:
    """Join a group through its join endpoint, as soon as its members admit a rank.

    Raises:  CollectiveError if no process answers there within `timeout_s`, or the group could not admit this rank.
    """
    welcome, lines = request_join(endpoint, secret, host, node, timeout_s)
    return Survivors(
        welcome.identity, welcome.peers, lines, welcome.members, secret, costs=Costs.from_text(welcome.costs),
        timeout_s=timeout_s, patience_s=patience_s, memory=memory, epoch=welcome.epoch, completed=welcome.completed,
    )  # fmt: skip
