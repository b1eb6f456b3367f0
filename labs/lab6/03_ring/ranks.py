"""Run the learner's all-reduce on simulated ranks whose connections count bytes; then in processes over TCP."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from frog.learn.grader.peers import FrameError, Peers, Wires

ALPHA_S, BETA_S = 1e-4, 1e-9
"""Seconds for a message, and for each of its bytes."""


def inputs_of(case: dict[str, Any], size: int) -> list[Tensor]:
    """Return each rank's input: whole numbers of which every sum is exact, or random floats."""
    generator = torch.Generator().manual_seed(case["seed"])
    dtype, shape = getattr(torch, case["dtype"]), (size, case["numel"])
    if case["values"] == "random":
        return list(torch.randn(shape, generator=generator, dtype=dtype))
    most = 1 << 40 if case["values"] == "large" else 100
    return list(torch.randint(-most, most, shape, generator=generator).to(dtype))


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [simulate(learner, one) for one in case["runs"]]


def simulate(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Let all ranks of a world reduce once."""
    size = case["size"]
    values, wires = inputs_of(case, size), Wires(case["seed"], size, ALPHA_S, BETA_S)

    def be(peers: Peers) -> None:
        learner.all_reduce(values[peers.rank], peers)

    errors = wires.run(be)
    if errors and not isinstance(errors[0], (FrameError, IndexError, ValueError)):
        raise errors[0]
    return {
        "values": values,
        "lengths": [] if errors or wires.stopped else [len(part) for part in learner.parts_of(values[0], size)],
        "error": f"{type(errors[0]).__name__}: {errors[0]}" if errors else "",
        "stuck": wires.stopped if not errors else "",
        "waiting": [[rank, what] for rank, what in wires.waiting()],
        "sent": wires.sent,
        "time_s": max(wires.time_s),
        "messages": [list(message) for message in wires.messages],
        "contents": wires.contents,
    }


class RealPeers:
    """Connections of torch.distributed: TCP between processes."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def send(self, to: int, values: Tensor) -> None:
        dist.send(values.contiguous(), to)

    def receive(self, source: int, into: Tensor) -> None:
        arrived = torch.empty_like(into, memory_format=torch.contiguous_format)
        dist.recv(arrived, source)
        into.copy_(arrived)

    def exchange(self, to: int, values: Tensor, source: int, into: Tensor) -> None:
        leaving = dist.isend(values.contiguous(), to)
        assert leaving is not None
        self.receive(source, into)
        leaving.wait()


def over_tcp(learner: ModuleType, case: dict[str, Any]) -> Any:
    values = inputs_of(case, dist.get_world_size())[dist.get_rank()].clone()
    learner.all_reduce(values, RealPeers())
    return values
