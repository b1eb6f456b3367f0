"""Train with the learner's pipeline: this rank's stage of a model whose embedding is also its output layer."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

STEPS, RATE = 2, 0.5
LENGTH = 6


class Layer(nn.Module):
    """x plus two linear layers. `scale` takes no part in the loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width + 3), nn.Linear(width + 3, width)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    """An embedding, layers, and the embedding again as the output layer. The second layer's `up` is frozen."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(case["vocabulary"], case["width"])
        self.layers = nn.ModuleList(Layer(case["width"]) for _ in range(case["num_layers"]))
        generator = torch.Generator().manual_seed(case["seed"])
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) * 0.4
        self.layers[1].up.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embedding.weight.T


class Stage(nn.Module):
    """A rank's part of the model. It notes which micro-batches' activations it holds."""

    def __init__(self, case: dict[str, Any], rank: int, size: int) -> None:
        super().__init__()
        model = Model(case)
        self.width, self.is_first, self.is_last = case["width"], rank == 0, rank == size - 1
        self.layers = nn.ModuleDict({str(n): model.layers[n] for n in layers_of(case, rank, size)})
        self.embedding = model.embedding if self.is_first or self.is_last else None
        self.tied = self.embedding.weight if self.embedding is not None else None
        self.held: list[StorageWeakRef] = []
        self.inputs: list[StorageWeakRef] = []
        self.kept_inputs: list[StorageWeakRef] = []
        self.peak, self.num_inputs, self.num_shared = 0, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.watch_input(x)
        if self.is_first:
            x = self.embedding(x)
        for n, layer in enumerate(self.layers.values()):
            inner = torch.tanh(layer.up(x))
            if n == 0:
                self.watch(inner)
            x = x + layer.down(inner)
        return x @ self.tied.T if self.is_last else x

    def watch(self, inner: Tensor) -> None:
        """Count the forward passes whose activations exist: autograd keeps those of tanh until the backward pass."""
        self.held = [one for one in self.held if not one.expired()]
        self.held.append(StorageWeakRef(inner.untyped_storage()))
        self.peak = max(self.peak, len(self.held))

    def watch_input(self, x: Tensor) -> None:
        """Count the inputs that exist, and those that share the memory of one whose activations still exist."""
        if not self.is_first:
            alive = [one for one, held in zip(self.inputs, self.held, strict=True) if not held.expired()]
            new = StorageWeakRef(x.untyped_storage())
            self.num_shared += any(one.cdata == new.cdata and not one.expired() for one in alive)
            self.inputs = [*alive, new]
            self.kept_inputs = [one for one in self.kept_inputs if not one.expired()] + [new]
            self.num_inputs = max(self.num_inputs, len(self.kept_inputs))

    def named(self) -> dict[str, nn.Parameter]:
        """Return the parameters by their names in the model."""
        found = {f"layers.{name}": p for name, p in self.layers.named_parameters()}
        return found | ({"embedding.weight": self.tied} if self.tied is not None else {})


def layers_of(case: dict[str, Any], rank: int, size: int) -> list[int]:
    """Return the numbers of a stage's layers; the first stages have one more if they do not divide."""
    return torch.arange(case["num_layers"]).tensor_split(size)[rank].tolist()


def batch_of(case: dict[str, Any], step: int) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * step + 1)
    return torch.randint(case["vocabulary"], (case["samples"], LENGTH + 1), generator=generator)


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group([0, size - 1])
    stage, steps = Stage(case, rank, size), []
    for step in range(STEPS):
        ends = group if stage.tied is not None else None
        try:
            loss = learner.train_step(stage, batch_of(case, step), case["micro_size"], ends)
        except Exception as error:
            if stage.num_shared:
                error.add_note(f"({stage.num_shared} of this stage's inputs had the memory of one still in use.)")
            raise
        gradients = {name: None if p.grad is None else p.grad.clone() for name, p in stage.named().items()}
        steps.append({"loss": loss.item() if isinstance(loss, Tensor) else loss, "gradients": gradients})
        for p in stage.parameters():
            if p.grad is not None:
                p.data -= RATE * p.grad
            p.grad = None
    weights = {name: p.detach().clone() for name, p in stage.named().items()}
    return {
        "steps": steps,
        "weights": weights,
        "peak": stage.peak,
        "inputs": stage.num_inputs,
        "shared": stage.num_shared,
    }
