"""Train a sharded model, save it in one world, and load it in another."""

import os
import threading
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

WIDTH, VOCABULARY, LENGTH, SAMPLES, LAYERS = 9, 13, 5, 12, 2
LR, OTHER_LR, STEPS = 0.02, 0.3, 2
EPS = 1e-3  # with the usual eps, rounding would decide the step of a tiny gradient
MARK = 251  # elements of an all-reduce that only this file calls, before a rank saves
may_run = threading.Event()
"""Set when threads that the learner's code has started may run."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH + 1), nn.Linear(2 * WIDTH + 1, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """Layers between an embedding and an output with the same weight. A norm is frozen; `num_seen` is a buffer."""

    num_seen: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("num_seen", torch.zeros(()))
        generator = torch.Generator().manual_seed(seed)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) * 0.4
        self.layers[1].norm.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.training:
            self.num_seen += 1
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss_of(model: nn.Module, seed: int, step: int, rank: int = 0, size: int = 1) -> Tensor:
    """Return the mean loss of a rank's samples in a step; all ranks together have the same samples in any world."""
    generator = torch.Generator().manual_seed(seed + step)
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator).chunk(size)[rank]
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, step: int, **place: int) -> None:
    optimizer.zero_grad()
    loss_of(model, seed, step, **place).backward()
    optimizer.step()


def sharded(seed: int, lr: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, mesh = Model(seed), init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, eps=EPS)


def whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().clone() if isinstance(value, Tensor) else value


def described(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return weights, buffers, moments and learning rates, as in one process."""
    names = {p: name for name, p in model.named_parameters()}
    moments = {names[p]: {key: whole(value) for key, value in state.items()} for p, state in optimizer.state.items()}
    weights = {name: whole(value) for name, value in [*model.named_parameters(), *model.named_buffers()]}
    return {"weights": weights, "moments": moments, "lrs": [group["lr"] for group in optimizer.param_groups]}


def hold_threads() -> None:
    """Let threads that start from now on wait for `may_run`, as if the machine had other work."""
    start = threading.Thread.start

    def start_held(thread: threading.Thread) -> None:
        run = thread.run

        def wait_and_run() -> None:
            may_run.wait()
            run()

        thread.run = wait_and_run  # type: ignore[method-assign]
        start(thread)

    setattr(threading.Thread, "start", start_held)  # noqa: B010


def save(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Train and save in the background while the tensors change; change them back, and save again."""
    rank, size = dist.get_rank(), dist.get_world_size()
    alone = [dist.new_group([one]) for one in range(size)][rank]
    model, optimizer = sharded(case["seed"], LR)
    for step in range(STEPS):
        train(model, optimizer, case["seed"], step, rank=rank, size=size)
    hold_threads()
    pending = learner.start_saving(model, optimizer, STEPS, "second")
    done = os.path.exists("second/.metadata") or getattr(pending, "done", bool)()
    with torch.no_grad():
        before = [tensor.clone() for tensor in changing(model, optimizer)]
        for tensor in changing(model, optimizer):
            tensor.add_(1.0)
        may_run.set()
        getattr(pending, "upload_completion", pending).result()
        for tensor, value in zip(changing(model, optimizer), before, strict=True):
            tensor.copy_(value)
    dist.all_reduce(torch.zeros(MARK, dtype=torch.int8), group=alone)
    learner.save(model, optimizer, STEPS, "first")
    return {"done": done}


def changing(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return this rank's tensors that a training step changes in place."""
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    tensors = [*(p for p in model.parameters() if p.requires_grad), *model.buffers(), *states]
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def load(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Load both checkpoints into new models, and train on from the first."""
    found = []
    for name in ("first", "second"):
        folder = f"{case['folder']}/{name}"
        model, optimizer = sharded(case["seed"] + 1, OTHER_LR)
        step = learner.load(model, optimizer, folder)
        found.append({"step": step, **described(model, optimizer), "saved": saved_numels(folder)})
        if name == "first":
            train(model, optimizer, case["seed"], STEPS, rank=dist.get_rank(), size=dist.get_world_size())
            found[0]["after"] = described(model, optimizer)["weights"]
    return found


def saved_numels(folder: str) -> dict[str, int]:
    """Return the number of elements of each tensor in a checkpoint; empty if it has no readable metadata."""
    try:
        entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    except Exception:
        return {}
    return {key: one.size.numel() for key, one in entries.items() if isinstance(one, TensorStorageMetadata)}
