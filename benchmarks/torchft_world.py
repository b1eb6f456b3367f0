"""A world of torchft, which survive.py measures for comparison; run as a program, this is one replica of it.

Its manager agrees on the quorum of each step, reduces the gradient over gloo in one piece, and commits the step. In
torchft 0.2.0 a DistributedDataParallel would end with the peer: its hook asserts that a failed all-reduce has a future.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from start import DEADLINE_S, read
from torch.distributed import TCPStore
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from frog.core.config.load import load_model_config
from frog.train.model import TinyTransformer


def measure(name: str, size: int, shape: tuple[str, int, int], num_steps: int, heartbeat_s: float) -> dict[str, float]:
    """Measure from SIGKILL of the last replica to the end of the next step committed without it.

    shape: the model file, the sequences per batch, and their length. num_steps: steps before the kill. heartbeat_s: the
    silence after which the lighthouse considers a replica lost.
    """
    lighthouse = LighthouseServer("127.0.0.1:0", min_replicas=1, heartbeat_timeout_ms=int(1000 * heartbeat_s))
    out, env = Path(f"{name}.jsonl"), {**os.environ, "OMP_NUM_THREADS": "1", "RUST_LOG": "error"}
    replicas = []
    for rank in range(size):
        words = [sys.executable, __file__, *map(str, shape), lighthouse.address(), str(rank), str(size)]
        with open(out if rank == 0 else os.devnull, "w") as file:
            replicas.append(subprocess.Popen(words, env=env, stdout=file, stderr=subprocess.DEVNULL))

    def ends_ns(wanted: Callable[[dict[str, int]], bool], count: int) -> list[int]:
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found := [step["end_ns"] for step in read(out) if wanted(step)]) < count:
            if time.monotonic() > deadline_s or replicas[0].poll() is not None:
                raise SystemExit(f"{name}: ended, or incomplete after {DEADLINE_S:g} s")
            time.sleep(0.02)
        return found

    try:
        before = ends_ns(lambda step: step["replicas"] == size, num_steps)
        killed_ns = time.monotonic_ns()
        replicas[-1].kill()
        next_ns = ends_ns(lambda step: step["end_ns"] > killed_ns and step["replicas"] < size, 1)[0]
    finally:
        for replica in replicas:
            replica.kill()
            replica.wait()
        lighthouse.shutdown()
    step_ns = statistics.median(end - start for start, end in itertools.pairwise(before[num_steps // 2 :]))
    return {"to the next step": (next_ns - killed_ns) / 1e9, "a step": step_ns / 1e9}


def train(config_file: Path, batch_size: int, sequence_length: int, lighthouse: str, rank: str, size: int) -> None:
    """Run one replica. Prints a line of JSON per committed step: the participants, and its end (monotonic clock)."""
    torch.manual_seed(0)
    config = load_model_config(config_file)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model = TinyTransformer(config)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        adamw.load_state_dict(state["optimizer"])

    manager = Manager(
        ProcessGroupGloo(),
        load,
        lambda: {"model": model.state_dict(), "optimizer": adamw.state_dict()},
        min_replica_size=1,
        replica_id=rank,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname="localhost",
    )
    optimizer = Optimizer(manager, adamw)
    while True:
        tokens = torch.randint(config.vocab_size, (batch_size // size, sequence_length + 1))
        optimizer.zero_grad()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        manager.allreduce(flat).wait()
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            step = {"step": before + 1, "replicas": manager.num_participants(), "end_ns": time.monotonic_ns()}
            print(json.dumps(step), flush=True)


if __name__ == "__main__":
    file, batch, length, lighthouse, rank, size = sys.argv[1:]
    train(Path(file), int(batch), int(length), lighthouse, rank, int(size))
