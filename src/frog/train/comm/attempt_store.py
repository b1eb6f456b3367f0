"""The store in which the ranks of one attempt find each other, separate from earlier attempts.

torchrun restarts failed ranks, and keeps one store for all attempts in its first agent. That store still contains the
addresses of earlier ranks: a rank that reads one of them connects to a process that has ended, and fails after a
timeout (with torch 2.13, in three of three restarts). The attempt number cannot tell attempts apart: an agent that
joins later counts from 0. So rank 0 draws a random name and gives it only to the ranks that ask now: each request
contains a random word that the rank has just drawn.
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
    """Return the store at MASTER_ADDR:MASTER_PORT, limited to the names of this attempt. A collective call.

    Raises:  RuntimeError if the other ranks do not arrive in time.
    """
    longest = datetime.timedelta(seconds=timeout_s)
    store: Store
    store, _, _ = next(iter(rendezvous("env://", env.rank, env.world_size, timeout=longest)))
    store.set_timeout(longest)
    if variable("TORCHELASTIC_USE_AGENT_STORE") != "True":  # rank 0 has just created it
        return store
    return PrefixStore(attempt_name(PrefixStore("attempts", store), env.rank, env.world_size, timeout_s), store)


def attempt_name(store: Store, rank: int, size: int, timeout_s: float) -> str:
    """Agree on a name among all current ranks, in a store that may contain entries of earlier ranks."""
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
            raise RuntimeError(f"{size - 1 - num_named} of {size} ranks did not arrive within {timeout_s:g} s")
        time.sleep(_LOOK_S)
    return word
