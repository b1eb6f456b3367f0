"""Run the learner's all-reduces on simulated ranks whose connections take time; then in processes over TCP."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from frog.learn.grader.peers import FrameError, Peers, Wires

BASE = 8


def inputs_of(case: dict[str, Any], size: int) -> list[Tensor]:
    """Return each rank's input: BASE to the power of its rank, so that a sum says who counted; or random floats."""
    if case["values"] == "counted":
        return [torch.full((case["numel"],), BASE**rank, dtype=torch.int64) for rank in range(size)]
    generator = torch.Generator().manual_seed(case["seed"])
    return list(torch.randn(size, case["numel"], generator=generator))


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [simulate(learner, one) for one in case["runs"]]


def simulate(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Let all ranks of a world reduce once, with one of the learner's functions."""
    size, way, network = case["size"], case["way"], (case["alpha_s"], case["beta_s"])
    values, wires = inputs_of(case, size), Wires(case["seed"], size, *network)

    def be(peers: Peers) -> None:
        more = network if way == "all_reduce" else ()
        getattr(learner, way)(values[peers.rank], peers, *more)

    errors = wires.run(be)
    if errors and not isinstance(errors[0], (FrameError, IndexError, ValueError)):
        raise errors[0]
    return {
        "values": values if case["numel"] < 10_000 else [],
        "error": f"{type(errors[0]).__name__}: {errors[0]}" if errors else "",
        "stuck": wires.stopped if not errors else "",
        "waiting": [[rank, what] for rank, what in wires.waiting()],
        "time_s": max(wires.time_s),
        "num_messages": len(wires.messages),
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
    learner.tree_all_reduce(values, RealPeers())
    return values
