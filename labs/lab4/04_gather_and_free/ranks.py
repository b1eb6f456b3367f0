"""Train a small model with the learner's shards, and measure the bytes that are alive between its layers."""

import contextlib
import gc
import math
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SMALL = 1024  # bytes; activations, biases and norms have fewer, weights and their shards have more
STEPS, RATE = 3, 0.3
NUM_LOOKS = 1000  # at bytes that should be gone; only a wrong solution needs them all, and only once
LAYERS, WIDTH = 12, 50  # the stack in the prediction


class Model(nn.Module):
    """A model with a tied weight, a frozen layer, a layer whose output is not used, and one that never runs."""

    def __init__(self, vocabulary: int, width: int, inner: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.up = nn.Linear(width, inner)
        self.frozen = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)
        self.block = nn.Sequential(nn.Linear(width, inner), nn.Tanh(), nn.Linear(inner, width, bias=False))
        self.side = nn.Linear(width, width + 5)
        self.idle = nn.Linear(inner, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = mark(self.embed(tokens), "up")
        h = mark(torch.tanh(self.up(h)), "frozen")
        h = mark(self.norm(torch.tanh(self.frozen(h))), "block.0")
        h = mark(h + self.block(h), "head")
        self.side(h)
        return self.head(h)


ORDER = ["embed", "up", "frozen", "norm", "block.0", "block.2", "side", "head"]
"""The layers in the order of forward. `mark` is called between some of them."""


TIED, FROZEN, ONE = "embed.weight", "frozen.weight", "up.weight"
COMPLETE = {
    "head": [],
    "block.0": ["block.0.weight", "block.2.weight"],
    "frozen": ["block.0.weight", "block.2.weight"],
    "up": ["block.0.weight", "block.2.weight", "up.weight"],
    "": ["block.0.weight", "block.2.weight", "up.weight", TIED],
}
"""The weights whose gradients are complete when backward has passed a layer; "" is the end of backward."""

NEXT = {None: TIED, "head": "block.0.weight", "block.0": FROZEN, "frozen": "up.weight", "up": TIED}
"""A weight that backward uses after it has passed a layer. (The head's weight is the embedding's.)"""


class Mark(torch.autograd.Function):
    """An identity whose backward calls a function."""

    called: Any = None

    @staticmethod
    def forward(ctx: Any, h: Tensor, after: str) -> Tensor:
        ctx.after = after
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if Mark.called:
            Mark.called(ctx.after)
        return gradient, None


def mark(h: Tensor, after: str) -> Tensor:
    """Return h; when its gradient is known, backward of the layer `after` and of all later ones is complete."""
    return Mark.apply(h, after)


class Alive(TorchDispatchMode):
    """Follows every storage that torch's operations create."""

    def __init__(self) -> None:
        super().__init__()
        self.refs: dict[int, StorageWeakRef] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.follow(tree_leaves(found))
        self.peak = max(self.peak, self.num_bytes())
        return found

    def follow(self, tensors: Any) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                ref = StorageWeakRef(tensor.untyped_storage())
                self.refs.setdefault(ref.cdata, ref)

    def num_bytes(self) -> int:
        """Return the bytes of all storages that exist now and are not small."""
        total = 0
        for cdata in list(self.refs):
            storage = torch.UntypedStorage._new_with_weak_ptr(cdata)
            if storage is None:
                del self.refs[cdata]
            elif storage.nbytes() >= SMALL:
                total += storage.nbytes()
        return total


def make_model(case: dict[str, Any]) -> nn.Module:
    generator = torch.Generator().manual_seed(case["seed"])
    if case["kind"] == "stack":
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    else:
        model = Model(*case["sizes"])
    for p in model.parameters():
        scale = 1 if p.dim() == 1 else p.shape[-1]
        p.data = torch.randn(p.shape, generator=generator) / math.sqrt(scale)
    return model


def batch(case: dict[str, Any], step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * step + rank + 1)
    return torch.randint(case["sizes"][0], (3,), generator=generator)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens), (tokens * 7 + 1) % model.head.out_features)


def size_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.untyped_storage().nbytes()


class Sizes:
    """Bytes of the weights that are not small, whole and as shards, in a world."""

    def __init__(self, case: dict[str, Any], size: int) -> None:
        numels = {name: p.numel() for name, p in make_model(case).named_parameters()}
        self.whole = {name: 4 * numel for name, numel in numels.items() if 4 * numel >= SMALL}
        self.shard = {name: 4 * math.ceil(numels[name] / size) for name in self.whole}
        self.all, self.shards = sum(self.whole.values()), sum(self.shard.values())
        self.least = min(self.whole.values())

    def expected(self, moment: str, layer: str) -> int:
        """Return the bytes of shards, of their gradients, and of the tied weight's gradient while it is incomplete."""
        if moment not in ("backward", "end"):
            return self.shards
        pending = self.whole[TIED] if moment == "backward" else 0
        return self.shards + sum(self.shard[name] for name in COMPLETE[layer]) + pending


class Meter:
    """Notes what is alive: all bytes, and those in the storages of parameters and of their gradients, by name."""

    def __init__(self, model: nn.Module, alive: Alive, sizes: Sizes) -> None:
        self.model, self.alive, self.sizes = model, alive, sizes
        self.notes: list[dict[str, Any]] = []
        self.is_over = False

    def num_bytes(self, most: int) -> int:
        """Return the bytes alive. A thread of gloo may hold a message a moment longer: look again, and let it run."""
        found, num_looks = self.alive.num_bytes(), 1
        while found >= most and not self.is_over:
            time.sleep(0.001)
            found, num_looks = self.alive.num_bytes(), num_looks + 1
            self.is_over = num_looks > NUM_LOOKS
        return found

    def note(self, moment: str, layer: str) -> None:
        named = dict(self.model.named_parameters())
        whole = {name: size_of(p) for name, p in named.items() if size_of(p) >= SMALL}
        gradients = {name: size_of(p.grad) for name, p in named.items() if size_of(p.grad) >= SMALL}
        num_bytes = self.num_bytes(self.sizes.expected(moment, layer) + self.sizes.least)
        self.notes.append(
            {"moment": moment, "layer": layer, "alive": num_bytes, "whole": whole, "gradients": gradients}
        )

    @contextlib.contextmanager
    def watch_forward(self, moment: str) -> Iterator[None]:
        """Note what is alive after each layer."""
        layers = dict(self.model.named_modules())
        hooks = [layers[name].register_forward_hook(lambda *_, name=name: self.note(moment, name)) for name in ORDER]
        yield
        for hook in hooks:
            hook.remove()


def train(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Take three steps, and measure in the first; or only its forward."""
    model, alive = make_model(case), Alive()
    alive.follow(model.parameters())
    meter = Meter(model, alive, Sizes(case, dist.get_world_size()))
    with alive:
        shards = learner.shard_model(model)
        gc.collect()
        meter.note("built", "")
    found = {"notes": meter.notes, "shard_bytes": sizes_of(shards), "steps": []}
    with alive, meter.watch_forward("evaluation"), torch.no_grad():
        loss_of(model, batch(case, 0, dist.get_rank()))
    with alive, meter.watch_forward("forward"):
        loss = loss_of(model, batch(case, 0, dist.get_rank()))
    if case["kind"] == "forward":
        return found | {"stopped": None, "gradient_bytes": {}}
    with alive:
        Mark.called = lambda after: meter.note("backward", after)
        found["stopped"] = run_backward(meter, loss)
        Mark.called = None
        meter.note("end", "")
    found["gradient_bytes"] = sizes_of({name: shard.grad for name, shard in shards.items()})
    for step in range(STEPS) if not found["stopped"] else []:
        if step > 0:
            loss_of(model, batch(case, step, dist.get_rank())).backward()
        found["steps"].append({name: shard.grad for name, shard in copied(shards).items()})
        move(shards)
    return found | {"shards": copied(shards)}


def sizes_of(tensors: dict[str, Tensor | None]) -> dict[str, int]:
    return {name: size_of(tensor) for name, tensor in tensors.items()}


def copied(shards: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    found = {name: shard.detach().clone() for name, shard in shards.items()}
    for name, shard in shards.items():
        found[name].grad = None if shard.grad is None else shard.grad.clone()
    return found


@torch.no_grad()
def move(shards: dict[str, nn.Parameter]) -> None:
    for shard in shards.values():
        if shard.grad is not None:
            shard -= RATE * shard.grad
        shard.grad = None


def run_backward(meter: Meter, loss: Tensor) -> dict[str, Any] | None:
    """Run backward. If it fails at a weight that is empty or has changed, return that weight's state."""
    named = dict(meter.model.named_parameters())
    versions = {name: p._version for name, p in named.items()}
    try:
        loss.backward()
    except RuntimeError as error:
        passed = [note["layer"] for note in meter.notes if note["moment"] == "backward"]
        name = NEXT[passed[-1] if passed else None]
        num_bytes, changes = size_of(named[name]), named[name]._version - versions[name]
        if num_bytes >= meter.sizes.whole[name] and not changes:
            raise
        return {"name": name, "bytes": num_bytes, "changes": changes, "error": str(error).split(". Hint")[0][:220]}
    return None


def stack(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Run forward through equal layers, and measure the peak."""
    model, alive = make_model(case), Alive()
    alive.follow(model.parameters())
    learner.shard_model(model)
    gc.collect()
    with alive:
        alive.peak = 0
        model(torch.ones(1, WIDTH))
    return {"peak": alive.peak}


def gradient_of(case: dict[str, Any], rank: int, weight: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 77 * rank + 5)
    return torch.randn(weight.shape, generator=generator)


def work_on_one(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Shard one weight, without hooks: gather it twice, reduce a gradient, free it."""
    weight = dict(make_model(case).named_parameters())[ONE]
    sharded = learner.Sharded(weight)
    gathered = []
    for _ in range(2):
        sharded.gather()
        gathered.append(weight.detach().clone())
    weight.grad = gradient_of(case, dist.get_rank(), weight)
    sharded.reduce()
    sharded.free()
    shard = sharded.shard.grad
    return {
        "gathered": gathered,
        "freed": size_of(weight),
        "left": size_of(weight.grad),
        "shard": None if shard is None else shard.clone(),
    }


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    return [stack(learner, case) if case["kind"] == "stack" else train(learner, case) for case in cases["cases"]]
