"""A world that changes: ranks are lost, others come in, and those who are there go on (`comm.on_loss = "shrink"`).

Under it is `frog.comm.elastic.survivors`. Each change ends an epoch: every collective of torch's group fails from then
on, and `renew` makes a group, and a world, of those who are there now. A rank's number is its place among them.
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

from frog.comm.attempt_store import attempt_store
from frog.comm.backend import choose_backend
from frog.comm.collectives.cost import kept
from frog.comm.collectives.errors import CollectiveError
from frog.comm.collectives.rendezvous import Peer, own_host
from frog.comm.elastic.door import Door
from frog.comm.elastic.entrance import join_survivors, meet_survivors
from frog.comm.elastic.survivors import Survivors
from frog.comm.process_group import address, node_name, start_on
from frog.comm.world import World, explained_rendezvous
from frog.config.run import MOST_ELASTIC_RANKS
from frog.core.env import WorldEnv
from frog.core.errors import RunError
from frog.core.schema import Host, Natural, Port, Typed, read_typed, write_typed

E = TypeVar("E", bound=BaseException)

_PATIENCE_S = 5.0
"""How long a rank may be silent while the others agree on who is left."""


class DoorFile(Typed, frozen=True):
    """`door.json` of a run that others may join: where its first member listens, and the run's secret. For its owner's
    eyes alone."""

    KIND: ClassVar[str] = "a run's door"
    FORMAT: ClassVar[int] = 1

    identity: Natural
    host: Host
    port: Port
    secret: str
    full: Literal["numbers", "batch"] | None = None
    """Why nobody may come in, and nobody listens: no number is left; or, for now, a step has no sequence left."""


@dataclass
class Membership:
    """This rank's part in a world that changes."""

    survivors: Survivors
    env: WorldEnv
    """As this process was started."""
    device: torch.device
    timeout_s: float
    secret: str
    door_file: Path | None = None
    """Where the first member says how to come in; None: nobody may."""
    refused: Callable[[str], None] = lambda line: None
    """Called with a line for each stranger at the door."""
    most_ranks: int = MOST_ELASTIC_RANKS
    """As many as a step's sequences can be dealt to."""
    members: tuple[int, ...] = ()
    """Of the world that `renew` made last."""
    tries: Counter[int] = field(default_factory=Counter)
    """How often each step failed in a world that lost nobody."""
    _door: Door | None = None
    _sign: DoorFile | None = None
    """What this rank has left in `door_file`."""

    @property
    def identity(self) -> int:
        """This rank's number for all its life."""
        return self.survivors.identity

    def renew(self) -> World:
        """The world of those who are there now."""
        if dist.is_initialized():
            dist.destroy_process_group()
        survivors = self.survivors
        self.members = survivors.members
        if self._full != (self._sign and self._sign.full):
            self._close_door()
        start_on(survivors, self.timeout_s)
        env = replace(self.env, rank=survivors.rank, world_size=survivors.size)
        return World(env, self.device, self.timeout_s, requested_backend="frog")

    @property
    def _full(self) -> Literal["numbers", "batch"] | None:
        """Why nobody may come in now."""
        if self.survivors.is_full:
            return "numbers"
        return "batch" if self.survivors.size >= self.most_ranks else None

    def open_door(self) -> None:
        """Let others knock, or have them told why they cannot, if this is the first member and has not done so yet."""
        if self.door_file is None or self._sign is not None or self.survivors.rank != 0:
            return
        own, full = self.survivors.address, self._full
        if full is None:
            self._door = Door(self.identity, self.secret.encode(), own.host, self.refused)
        port = own.port if self._door is None else self._door.peer.port
        self._sign = DoorFile(identity=self.identity, host=own.host, port=port, secret=self.secret, full=full)
        write_typed(self.door_file, self._sign, private=True)

    def has_knocked(self) -> bool:
        """Whether somebody has knocked, as far as this rank knows: only the first member does."""
        return bool(self._door)

    def let_in(self) -> NoReturn:
        """Let one in who waits. A collective call. Raises WorldChanged."""
        self.survivors.admit(self._door.next() if self._door is not None else None)

    def leave(self) -> None:
        """The run is over for this rank."""
        self._close_door()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.survivors.close()

    def _close_door(self) -> None:
        """Close this rank's door, and take its file away, unless that is another's by now."""
        door, self._door = self._door, None
        sign, self._sign = self._sign, None
        if door is not None:
            door.close()
        if sign is not None and self.door_file is not None:
            with suppress(FileNotFoundError, RunError):
                if read_typed(self.door_file, DoorFile) == sign:
                    self.door_file.unlink()


def found_membership(env: WorldEnv, device: torch.device, timeout_s: float) -> Membership:
    """Meet the ranks that a launcher has started.

    Raises:  CommError if they do not come together in time; UsageError if this device's tensors cannot be moved.
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
            timeout_s=timeout_s, patience_s=_PATIENCE_S, costs=kept() if env.rank == 0 else None,
        )  # fmt: skip
    return Membership(survivors, env, device, timeout_s, secret)


def join_membership(env: WorldEnv, device: torch.device, timeout_s: float, door_file: Path) -> Membership:
    """Come into a run through its door, as soon as it lets somebody in.

    Raises:  CollectiveError if that comes to nothing; RunError if it always would, or the door's file cannot be read.
    """
    door = read_typed(door_file, DoorFile)
    if door.full == "numbers":
        raise RunError(f"{door_file.parent}: {MOST_ELASTIC_RANKS} ranks have been in it, and no more can come")
    if door.full == "batch":
        raise CollectiveError("each rank takes a sequence of a micro-batch, and none is left for another")
    try:
        host = own_host(door.host)
    except OSError as error:
        raise CollectiveError(f"no way leads to {door.host}, where the run's door is: {error}") from error
    peer, secret = Peer(door.identity, door.host, door.port, ""), door.secret.encode()
    survivors = join_survivors(peer, secret, host, node_name(env), timeout_s=timeout_s, patience_s=_PATIENCE_S)
    return Membership(survivors, env, device, timeout_s, door.secret, door_file)


def behind(error: BaseException, kind: type[E]) -> E | None:
    """The error of this kind that another comes from, or is, if there is one."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, kind):
        found = found.__cause__
    return found


def _store(env: WorldEnv, timeout_s: float) -> Store:
    if env.world_size == 1:
        return HashStore()
    return PrefixStore("survivors", attempt_store(env, timeout_s))
