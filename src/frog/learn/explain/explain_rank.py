"""One rank of `frog explain`: it works, meets the others, and records times for frog.learn.explain.story to chart.

Each rank has a different amount of work, so that ranks have to wait for each other. The work is real: matrix products.
All times are from the machine's monotonic clock, which its processes share.
"""

from __future__ import annotations

import argparse
import datetime
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from frog.core.env import WorldEnv, host_name, variable
from frog.core.files import write_json
from frog.core.processes import leave
from frog.train.comm import join_world
from frog.train.comm.backend import choose_backend
from frog.train.comm.world import explained_rendezvous
from frog.train.process import RankProcess

_CPU = torch.device("cpu")
_TIMEOUT_S = 60.0
_PORTION = 300
"""Products of two 256 x 256 matrices in one portion; ranks compute different numbers of portions."""

_PAYLOAD_BYTES = 1 << 20
_BYTES_SENT_AT = 200
"""Offset of the number of sent bytes in Linux's tcp_info."""


def main(arguments: Sequence[str]) -> int:
    """Run one rank of the world (arguments such as `barrier FOLDER`) and write FOLDER/rank_N.json."""
    parser = argparse.ArgumentParser(prog="frog explain")
    parser.add_argument("what", choices=_PROGRAMS)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(arguments)

    with RankProcess() as rank:
        env = rank.begin()
        noted = _PROGRAMS[args.what](env)
        write_json(args.folder / f"rank_{env.rank}.json", {**_who(env), **noted})
    return rank.exit_code


def _who(env: WorldEnv) -> dict[str, Any]:
    return {
        "rank": env.rank,
        "world_size": env.world_size,
        "local_rank": env.local_rank,
        "ranks_per_node": env.local_world_size,
        "node_rank": env.node_rank,
        "host": host_name(),
        "pid": os.getpid(),
        "rendezvous_address": f"{env.master_addr}:{env.master_port}",
        "listener": "the agent of node 0" if variable("TORCHELASTIC_USE_AGENT_STORE") == "True" else "rank 0",
    }


def _work(num_portions: int) -> dict[str, Any]:
    """Multiply matrices. Return the start time and the number of products."""
    began_ns = time.monotonic_ns()
    x, turn = torch.ones(256, 256), torch.eye(256)
    for _ in range(num_portions * _PORTION):
        x = x @ turn
    return {"began_ns": began_ns, "num_products": num_portions * _PORTION}


def _barrier(env: WorldEnv) -> dict[str, Any]:
    """On rank r, compute r portions, then enter the barrier."""
    world = join_world(env, _CPU, _TIMEOUT_S)
    try:
        world.barrier()  # a common start
        noted = _work(env.rank)
        came_ns = time.monotonic_ns()
        world.barrier()
        return {**noted, "came_ns": came_ns, "left_ns": time.monotonic_ns()}
    finally:
        world.leave()


def _all_reduce(env: WorldEnv) -> dict[str, Any]:
    """On rank r, compute r portions, then contribute a tensor filled with r + 1."""
    world = join_world(env, _CPU, _TIMEOUT_S)
    try:
        x = torch.full((_PAYLOAD_BYTES // 4,), float(env.rank + 1))
        world.all_reduce(x.clone())  # the first one of a size also allocates buffers
        world.barrier()  # a common start
        before = _settled_bytes_sent()
        noted = _work(env.rank)
        came_ns = time.monotonic_ns()
        world.all_reduce(x)
        left_ns = time.monotonic_ns()
        world.barrier()  # every rank has received everything, so no bytes are waiting in a socket
        sent = _settled_bytes_sent() - before
        world.barrier()  # no rank exits while another still reads its counters
        return {
            **noted,
            "came_ns": came_ns,
            "left_ns": left_ns,
            "payload_bytes": x.numel() * x.element_size(),
            "bytes_sent": sent if sys.platform == "linux" else None,
            "gave": float(env.rank + 1),
            "got": [float(x.min()), float(x.max())],
        }
    finally:
        world.leave()


def _settled_bytes_sent() -> int:
    """Return the number of bytes sent once it stops growing: a last message may still be on its way."""
    sent, deadline = _bytes_sent(), time.monotonic() + 2
    while time.monotonic() < deadline:
        time.sleep(0.02)
        if (now := _bytes_sent()) == sent:
            break
        sent = now
    return sent


def _bytes_sent() -> int:
    """Return the number of bytes sent on all TCP sockets of this process, as Linux counts it; 0 on other systems.

    Bytes that the kernel sent again count once: on a busy machine, an acknowledgement may be late.
    """
    total = 0
    folder = Path("/proc/self/fd")
    for entry in os.listdir(folder) if folder.is_dir() else ():
        try:
            if not os.readlink(folder / entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed by now, or not a TCP socket
            continue
        if len(info) >= _BYTES_SENT_AT + 16:
            sent, sent_again = struct.unpack_from("QQ", info, _BYTES_SENT_AT)
            total += sent - sent_again
    return total


def _rendezvous(env: WorldEnv) -> dict[str, Any]:
    """Connect to the store and join the world. Rank 1 arrives first, then ranks 0, 2, 3 and so on."""
    noted = _work({0: 1, 1: 0}.get(env.rank, env.rank))
    timeout = datetime.timedelta(seconds=_TIMEOUT_S)
    knocked_ns = time.monotonic_ns()
    backend = choose_backend("auto", _CPU)
    with explained_rendezvous(backend, env):
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        reached_ns = time.monotonic_ns()
        arrival = store.add("explain/arrivals", 1)
        store.set(f"explain/{rank}", "here")
        store.wait([f"explain/{other}" for other in range(size)], timeout)
        complete_ns = time.monotonic_ns()
        backend.start(env, _CPU, _TIMEOUT_S, PrefixStore("explain/world", store))
        joined_ns = time.monotonic_ns()
        dist.barrier()  # rank 0, which may serve the store, stays until all have joined
        dist.destroy_process_group()
    return {
        **noted,
        "knocked_ns": knocked_ns,
        "reached_ns": reached_ns,
        "arrival": arrival,
        "complete_ns": complete_ns,
        "joined_ns": joined_ns,
    }


_PROGRAMS = {"barrier": _barrier, "rendezvous": _rendezvous, "all-reduce": _all_reduce}


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
