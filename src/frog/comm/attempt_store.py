"""Where the ranks of one attempt find each other, apart from those of the attempts before.

torchrun starts ranks that ended again, and keeps one store for all attempts, in its first agent. There the addresses
of the ranks before still stand: whoever reads one of them calls a process that is gone, until it gives up (with torch
2.13 three of three restarts). The number of an attempt is no name for it: an agent that comes later counts from 0.
So rank 0 draws a name, and gives it to those alone who ask now: each asks with a word that it has just drawn.
"""

from __future__ import annotations

import datetime
import secrets
import time

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from frog.core.env import WorldEnv, variable

_LOOK_S = 0.01


def attempt_store(env: WorldEnv, timeout_s: float) -> Store:
    """The store at MASTER_ADDR:MASTER_PORT, with the names of this attempt alone. A collective call.

    Raises:  RuntimeError if the other ranks do not come in time.
    """
    longest = datetime.timedelta(seconds=timeout_s)
    store: Store
    store, _, _ = next(iter(rendezvous("env://", env.rank, env.world_size, timeout=longest)))
    store.set_timeout(longest)
    if variable("TORCHELASTIC_USE_AGENT_STORE") != "True":  # rank 0 made it just now
        return store
    return PrefixStore(attempt_name(PrefixStore("attempts", store), env.rank, env.world_size, timeout_s), store)


def attempt_name(store: Store, rank: int, size: int, timeout_s: float) -> str:
    """A name that all ranks which are there now agree on, in a store that may hold what earlier ones wrote."""
    word = secrets.token_hex(8)
    if rank != 0:
        store.set(f"asks {rank}", word)
        name = store.get(word).decode()
        store.add(name, 1)
        return name
    deadline_s, asks = time.monotonic() + timeout_s, [f"asks {other}" for other in range(1, size)]
    while (num_named := store.add(word, 0)) < size - 1:
        for key in asks:
            if store.check([key]):
                store.set(store.get(key).decode(), word)
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{size - 1 - num_named} of {size} ranks did not come within {timeout_s:g} s")
        time.sleep(_LOOK_S)
    return word
