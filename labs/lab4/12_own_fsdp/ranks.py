"""Train a small model with a strategy of the learner, and measure the bytes that each rank holds."""

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

VOCAB, WIDTH, HIDDEN, LAYERS = 31, 40, 73, 8
RATE, EPS = 0.01, 1e-3
SLACK = 3
"""Layers that a strategy may hold while it runs, in addition to the docstring's: gathers ahead, buffers."""
MOST = 1.75
"""How many times as much as its part of weights and gradients a rank may hold when no layer runs."""
NUM_LOOKS = 400  # at bytes that should be gone; only a wrong solution needs them all, and only once
MARK = 251  # elements of an all-reduce that only this file calls; it marks the end of a step


class Layer(nn.Module):
    """A layer with a frozen norm. One of them has weights that only some steps use."""

    def __init__(self, watch: Callable[[str], None], with_extra: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.extra = nn.Linear(WIDTH, 7) if with_extra else None
        self.norm.requires_grad_(False)
        self.watch = watch

    def forward(self, x: Tensor, uses_extra: bool) -> Tensor:
        h = torch.tanh(self.up(self.norm(x)))
        h = Watched.apply(h, self.watch)
        h = self.down(h)
        if self.extra is not None and uses_extra:
            h = h * (1 + self.extra(x).mean(-1, keepdim=True))  # a sum would vanish in the next norm
        return x + h


class Watched(torch.autograd.Function):
    """The identity; it calls a function in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, watch: Callable[[str], None]) -> Tensor:
        ctx.watch = watch
        watch("forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.watch("backward")
        return gradient, None


class Network(nn.Module):
    """Layers between an embedding and an output layer that shares its weight."""

    def __init__(self, watch: Callable[[str, int], None]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(
            Layer(lambda phase, number=number: watch(phase, number), number == 2) for number in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, uses_extra: bool) -> Tensor:
        h = self.embedding(tokens)
        for layer in self.layers:
            h = layer(h, uses_extra)
        return self.head(self.norm(h))


def make_model(seed: int, watch: Callable[[str, int], None] = lambda phase, number: None) -> Network:
    model, generator = Network(watch), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
    return model


def loss_of(model: nn.Module, case: dict[str, Any], step: int, micro: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * step + 100 * micro + rank)
    tokens = torch.randint(VOCAB, case["shape"], generator=generator)
    logits = model(tokens, case["uses_extra"][step])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), (tokens.flatten() * 5 + 1) % VOCAB)
    return loss / case["num_micro"][step]


def make_optimizer(tensors: list[nn.Parameter]) -> torch.optim.Optimizer | None:
    return torch.optim.AdamW(tensors, lr=RATE, eps=EPS, weight_decay=0.0) if tensors else None


Point = tuple[str, int, int, int, int]
"""A phase, a layer, and bytes: of all tensors, of the model's parameters, of their gradients."""


class Living(TorchDispatchMode):
    """Keeps track of the tensors made while it is on, and adds up the bytes of those that still exist."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and not is_traceable_wrapper_subclass(tensor):  # a DTensor has no bytes
                storage = tensor.untyped_storage()
                if storage._cdata not in self.made:
                    self.made[storage._cdata] = StorageWeakRef(storage)
        return made

    def num_bytes(self) -> int:
        self.made = {key: ref for key, ref in self.made.items() if not ref.expired()}
        storages = [torch.UntypedStorage._new_with_weak_ptr(ref.cdata) for ref in self.made.values()]
        return sum(storage.nbytes() for storage in storages if storage is not None)


def bytes_of(tensors: list[Tensor | None]) -> int:
    """Return the bytes of these tensors' storages, each counted once."""
    local = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    there = [tensor.untyped_storage() for tensor in local if tensor is not None]
    return sum({storage._cdata: storage.nbytes() for storage in there}.values())


class Meter:
    """Measures at points of a step, in bytes: all tensors that exist, the model's parameters, their gradients."""

    def __init__(self) -> None:
        self.living, self.points = Living(), []
        self.model = nn.Module()
        self.allowed: dict[tuple[int, str, int], int] = {}
        """Bytes in addition to those at the beginning of a micro-batch of the first step, at each of its points."""
        self.micro, self.start, self.is_patient = -1, 0, True

    def settle(self, most: float) -> None:
        """Let gloo's threads release the tensors of collectives that have ended, which needs Python's lock.

        A solution that is out of patience is rejected for the bytes at this point.
        """
        num_looks = 0
        while self.is_patient and self.living.num_bytes() > most:
            num_looks += 1
            self.is_patient = num_looks < NUM_LOOKS
            time.sleep(0.005)

    def __call__(self, phase: str, layer: int = -1) -> None:
        if phase == "begin":
            self.micro, self.start = self.micro + 1, self.living.num_bytes()
        if (self.micro, phase, layer) in self.allowed:
            self.settle(self.start + self.allowed[self.micro, phase, layer])
        trained = list(trained_of(self.model).values())
        parameters, grads = bytes_of(trained), bytes_of([p.grad for p in trained])
        self.points.append((phase, layer, self.living.num_bytes(), parameters, grads))

    def take(self) -> list[Point]:
        points, self.points = self.points, []
        return points


def by_place(points: list[Point]) -> dict[tuple[int, str, int], Point]:
    """Return a step's points by micro-batch, phase and layer; the first, if a layer runs forward again."""
    found: dict[tuple[int, str, int], Point] = {}
    micro = -1
    for point in points:
        micro += point[0] == "begin"
        found.setdefault((micro, point[0], point[1]), point)
    return found


def activations(plain: list[Point]) -> dict[tuple[int, str, int], int]:
    """Return the bytes of the activations at each point of a step in one process."""
    found = by_place(plain)
    starts = {place: found[place[0], "begin", -1] for place in found}
    return {
        place: point[2] - starts[place][2] - (point[4] - starts[place][4])
        for place, point in found.items()
        if place[1] != "begin"
    }


def formula(phase: str, size: int) -> int:
    """Return the bytes that a rank holds while a layer runs, in addition to its part of the weights.

    In forward, the weights of the layer and of what is outside the layers. In backward their gradients too, and the
    rank's part of all gradients.
    """
    total, layer, root = sizes()
    return layer + root if phase == "forward" else 2 * (layer + root) + total // size


def run_step(
    model: nn.Module, meter: Meter, case: dict[str, Any], step: int, rank: int, own: Any = None
) -> list[float]:
    """Run a step's forward and backward passes, with a strategy or without; return the losses."""
    losses = []
    for micro in range(case["num_micro"][step]):
        last = micro == case["num_micro"][step] - 1
        call_optional(own, "before_backward", last)
        meter("begin")
        loss = loss_of(model, case, step, micro, rank)
        loss.backward()
        losses.append(loss.item())
        del loss
        call_optional(own, "after_backward", last)
    return losses


def call_optional(own: Any, name: str, *values: Any) -> bool:
    if hasattr(own, name):
        getattr(own, name)(*values)
        return True
    return False


def without_strategy(case: dict[str, Any]) -> list[Point]:
    """Measure the first step in one process: what its activations take at each point."""
    meter = Meter()
    with meter.living:
        model = meter.model = make_model(case["seed"], meter)
        run_step(model, meter, case, 0, dist.get_rank())
    return meter.take()


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    rank, meter = dist.get_rank(), Meter()
    plain, size = without_strategy(case), dist.get_world_size()
    meter.allowed = {
        place: taken + formula(place[1], size) + SLACK * sizes()[1] for place, taken in activations(plain).items()
    }
    with meter.living:
        model = meter.model = make_model(case["seed"], meter)
        own = learner.build(model, dist.group.WORLD)
        owned = own.owned()
    claims = claims_of(owned)
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, claims)
    if not all(all(map(is_fair, some)) for some in everyone) or not covers(everyone):
        return {"claims": claims}
    return {"claims": claims, "plain": plain, "steps": train(model, own, owned, meter, case, rank)}


def claims_of(owned: Any) -> list[Any]:
    """Describe what `owned` returned: name, start, number of elements and type of each item, or a wrong item's type."""
    if not isinstance(owned, (list, tuple)):
        return [type(owned).__name__]
    return [claim_of(one) for one in owned]


def claim_of(one: Any) -> Any:
    if not isinstance(one, (list, tuple)) or len(one) != 3 or not isinstance(one[2], Tensor):
        return type(one).__name__
    name, start, tensor = one
    return (str(name), start if type(start) is int else -1, tensor.numel(), type(tensor).__name__)


def is_fair(claim: Any) -> bool:
    return not isinstance(claim, str) and claim[1] >= 0 and claim[3] == "Parameter"


def owners_of(everyone: list[list[Any]]) -> dict[str, Tensor]:
    """Return how many ranks own each element, by parameter. Other names, and elements past an end, are included."""
    found = {name: torch.zeros(numel) for name, numel in numels().items()}
    for name, start, num, _ in (claim for some in everyone for claim in some):
        counts = found.get(name, torch.zeros(0))
        found[name] = nn.functional.pad(counts, (0, max(0, start + num - len(counts))))
        found[name][start : start + num] += 1
    return found


def covers(everyone: list[list[Any]]) -> bool:
    """True if exactly one rank owns each element of the trained parameters."""
    expected, found = owners_of([]), owners_of(everyone)
    return found.keys() == expected.keys() and all(
        found[name].shape == one.shape and bool((found[name] == 1).all()) for name, one in expected.items()
    )


@functools.cache
def numels() -> dict[str, int]:
    """Return the number of elements of each trained parameter."""
    return {name: p.numel() for name, p in trained_of(make_model(0)).items()}


@functools.cache
def sizes() -> tuple[int, int, int]:
    """Return the bytes of all trained parameters, of the largest layer, and of those outside the layers."""
    named = {name: 4 * numel for name, numel in numels().items()}
    layers = [sum(n for name, n in named.items() if name.startswith(f"layers.{k}.")) for k in range(LAYERS)]
    return sum(named.values()), max(layers), sum(named.values()) - sum(layers)


def trained_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def train(model: nn.Module, own: Any, owned: Any, meter: Meter, case: dict[str, Any], rank: int) -> list[Any]:
    tensors, size = [tensor for _, _, tensor in owned], dist.get_world_size()
    total, layer, _ = sizes()
    most = MOST * 2 * total / size  # the frozen parameters, which are small, come on top of that
    optimizer, steps = make_optimizer(tensors), []
    for step in range(len(case["num_micro"])):
        meter.settle(most)
        with meter.living:
            losses = run_step(model, meter, case, step, rank, own)
            own.reduce()
            meter.settle(most)
            meter("reduced")
        found = {"losses": losses, "grads": [copied(tensor.grad) for tensor in tensors]}
        if optimizer is not None:
            optimizer.step()
        with meter.living:
            own.gather()
            if not call_optional(own, "zero"):
                for tensor in (*tensors, *trained_of(model).values()):
                    tensor.grad = None
            meter.settle(most)
            meter("stepped")
            resting = meter.living.num_bytes()
            found["frozen"] = {name: bytes_of([p]) for name, p in model.named_parameters() if not p.requires_grad}
            with torch.no_grad():
                found["evaluated"] = loss_of(model, case, step, 9, 0).item()
            meter.settle(resting + SLACK * layer)
            meter("evaluated")
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))
        steps.append(found | {"weights": [copied(tensor) for tensor in tensors], "points": meter.take()})
    return steps


def copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().flatten().clone()
