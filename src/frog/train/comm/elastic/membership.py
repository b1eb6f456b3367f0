"""A world whose membership changes: ranks are lost or join, and the others continue (`comm.on_loss = "shrink"`).

It builds on `frog.train.comm.elastic.survivors`. Each change ends an epoch: from then on every collective of torch's
group fails, and `renew` builds a group and a world of the current members. A rank's number is its index among them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from frog.core.config.run_config import MOST_ELASTIC_RANKS
from frog.core.env import WorldEnv
from frog.core.errors import RunError
from frog.core.schema import Host, Natural, Port, Typed, read_typed, write_typed
from frog.train.comm.attempt_store import attempt_store
from frog.train.comm.backend import choose_backend
from frog.train.comm.collectives.cost import saved_costs
from frog.train.comm.collectives.errors import CollectiveError
from frog.train.comm.collectives.rendezvous import Peer, own_host
from frog.train.comm.elastic.entrance import join_survivors, meet_survivors
from frog.train.comm.elastic.join_endpoint import JoinEndpoint
from frog.train.comm.elastic.survivors import Survivors
from frog.train.comm.process_group import address, node_name, start_on
from frog.train.comm.world import World, explained_rendezvous

E = TypeVar("E", bound=BaseException)

_PATIENCE_S = 5.0
"""How long a rank may be silent while the others agree on the membership."""

_OLD_NAME = "door.json"
"""The endpoint file's name in Frog 0.1, for scripts that wait for it: a link to the file."""


class JoinEndpointFile(Typed, frozen=True):
    """The file `join_endpoint.json`: address of the run's first member, and its secret. Only the owner may read it."""

    KIND: ClassVar[str] = "the join endpoint of a run"
    FORMAT: ClassVar[int] = 1

    identity: Natural
    host: Host
    port: Port
    secret: str
    full: Literal["numbers", "batch"] | None = None
    """Why no rank can join and no member listens: no identity is left, or currently a step has no sequence left."""


@dataclass
class Membership:
    """This rank's part in a world whose membership changes."""

    survivors: Survivors
    env: WorldEnv
    """The environment in which this process was started."""
    device: torch.device
    timeout_s: float
    secret: str
    endpoint_file: Path | None = None
    """Where the first member publishes the join endpoint; None: no rank may join."""
    refused: Callable[[str], None] = lambda line: None
    """Called with a line for each caller that failed to authenticate at the join endpoint."""
    most_ranks: int = MOST_ELASTIC_RANKS
    """The most ranks among which the sequences of a step can be divided."""
    members: tuple[int, ...] = ()
    """Members of the world that `renew` built last."""
    tries: Counter[int] = field(default_factory=Counter)
    """How often each step failed in a world that lost no rank."""
    _endpoint: JoinEndpoint | None = None
    _published: JoinEndpointFile | None = None
    """The content that this rank last wrote to `endpoint_file`."""

    @property
    def identity(self) -> int:
        """This rank's permanent number."""
        return self.survivors.identity

    def renew(self) -> World:
        """Build the world of the current members."""
        if dist.is_initialized():
            dist.destroy_process_group()
        survivors = self.survivors
        self.members = survivors.members
        if self._full != (self._published and self._published.full):
            self._close_endpoint()
        start_on(survivors, self.timeout_s)
        env = replace(self.env, rank=survivors.rank, world_size=survivors.size)
        return World(env, self.device, self.timeout_s, requested_backend="frog")

    @property
    def _full(self) -> Literal["numbers", "batch"] | None:
        """The reason why no rank can join now; None if one can."""
        if self.survivors.is_full:
            return "numbers"
        return "batch" if self.survivors.size >= self.most_ranks else None

    def open_endpoint(self) -> None:
        """Accept join requests, or publish why none is possible; on the first member only, once per membership."""
        if self.endpoint_file is None or self._published is not None or self.survivors.rank != 0:
            return
        own, full = self.survivors.address, self._full
        if full is None:
            self._endpoint = JoinEndpoint(self.identity, self.secret.encode(), own.host, self.refused)
        port = own.port if self._endpoint is None else self._endpoint.peer.port
        self._published = JoinEndpointFile(
            identity=self.identity, host=own.host, port=port, secret=self.secret, full=full
        )
        write_typed(self.endpoint_file, self._published, private=True)
        with suppress(OSError):
            self.endpoint_file.with_name(_OLD_NAME).symlink_to(self.endpoint_file.name)

    def has_join_request(self) -> bool:
        """True if a join request waits. Only the first member knows."""
        return bool(self._endpoint)

    def admit(self) -> NoReturn:
        """Admit a waiting process. A collective call. Raises WorldChanged."""
        self.survivors.admit(self._endpoint.next() if self._endpoint is not None else None)

    def leave(self) -> None:
        """Leave at the end of the run."""
        self._close_endpoint()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.survivors.close()

    def _close_endpoint(self) -> None:
        """Close this rank's join endpoint and delete its file, unless another rank has replaced the file."""
        endpoint, self._endpoint = self._endpoint, None
        published, self._published = self._published, None
        if endpoint is not None:
            endpoint.close()
        if published is not None and self.endpoint_file is not None:
            with suppress(FileNotFoundError, RunError):
                if read_typed(self.endpoint_file, JoinEndpointFile) == published:
                    self.endpoint_file.unlink()
                    self.endpoint_file.with_name(_OLD_NAME).unlink(missing_ok=True)


def found_membership(env: WorldEnv, device: torch.device, timeout_s: float) -> Membership:
    """Connect to the ranks that the launcher started.

    Raises:  CommError if they do not all arrive in time; UsageError if this device's tensors cannot be moved.
    """
    backend = choose_backend("frog", device)
    with explained_rendezvous(backend, env):
        store = _store(env, timeout_s)
        if env.rank == 0:
            store.set("secret", secrets.token_hex(16))
        secret = store.get("secret").decode()
        host, node = address(env)
        survivors = meet_survivors(
            store, env.rank, env.world_size, secret.encode(), host, node,
            timeout_s=timeout_s, patience_s=_PATIENCE_S, costs=saved_costs() if env.rank == 0 else None,
        )  # fmt: skip
    return Membership(survivors, env, device, timeout_s, secret)


def join_membership(env: WorldEnv, device: torch.device, timeout_s: float, endpoint_file: Path) -> Membership:
    """Join a run through its join endpoint, as soon as the run admits a rank.

    Raises:  CollectiveError if joining fails this time; RunError if it can never succeed, or the file cannot be read.
    """
    endpoint = read_typed(endpoint_file, JoinEndpointFile)
    if endpoint.full == "numbers":
        raise RunError(f"{endpoint_file.parent}: all {MOST_ELASTIC_RANKS} identities are used; no more ranks can join")
    if endpoint.full == "batch":
        raise CollectiveError("each rank needs a sequence of every micro-batch, and none is left for another rank")
    try:
        host = own_host(endpoint.host)
    except OSError as error:
        raise CollectiveError(f"no route to {endpoint.host}, the host of the run's join endpoint: {error}") from error
    peer, secret = Peer(endpoint.identity, endpoint.host, endpoint.port, ""), endpoint.secret.encode()
    survivors = join_survivors(peer, secret, host, node_name(env), timeout_s=timeout_s, patience_s=_PATIENCE_S)
    return Membership(survivors, env, device, timeout_s, endpoint.secret, endpoint_file)


def behind(error: BaseException, kind: type[E]) -> E | None:
    """Return the error of this kind in the chain of causes, if there is one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__
    return cause


def _store(env: WorldEnv, timeout_s: float) -> Store:
    if env.world_size == 1:
        return HashStore()
    return PrefixStore("survivors", attempt_store(env, timeout_s))
