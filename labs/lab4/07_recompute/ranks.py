"""Take two steps with a small model; count the calls of its parts and the bytes that exist between them."""

import contextlib
import gc
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HEADS, TOKENS = 3, 11

Run = Callable[[Sequence[nn.Module], Tensor, str], Tensor]


class Attention(nn.Module):
    """x plus what each position reads from the earlier ones."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.drop, self.out = nn.Dropout(dropout), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = batch, length, 3, HEADS, width // HEADS
        q, k, v = self.qkv(self.norm(x)).reshape(shape).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // HEADS) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        share = self.drop(scores.masked_fill(future, -1e4).softmax(-1))
        return x + self.out((share @ v).transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    """x plus two linear layers. `scale` is used by no forward pass, so it never gets a gradient."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.Dropout(dropout)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(x))))


class Layer(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(width, dropout), Mlp(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attention(x))


def make_model(case: dict[str, Any]) -> nn.ModuleDict:
    """Make an embedding and layers. The third layer's `up` is the first one's; a norm is frozen."""
    layers = nn.ModuleList(Layer(case["width"], case["dropout"]) for _ in range(case["num_layers"]))
    layers[2].mlp.up = layers[0].mlp.up
    model = nn.ModuleDict({"embedding": nn.Embedding(TOKENS, case["width"]), "layers": layers})
    generator = torch.Generator().manual_seed(case["seed"])
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) * (0.3 if p.dim() > 1 else 0.1)
    layers[1].attention.norm.requires_grad_(False)
    model["embedding"].requires_grad_(case["trains_input"])
    return model


class Memory(TorchDispatchMode):
    """Counts the bytes of tensors that operations have created and that still exist."""

    def __init__(self, existing: Iterable[Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in existing}
        self._created: list[tuple[StorageWeakRef, int]] = []
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        for value in tree_leaves(returned):
            if isinstance(value, Tensor) and value.untyped_storage()._cdata not in self._known:
                storage = value.untyped_storage()
                self._known.add(storage._cdata)
                self._created.append((StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, self.num_bytes())
        return returned

    def num_bytes(self) -> int:
        gone = {ref.cdata for ref, _ in self._created if ref.expired()}
        self._known -= gone
        self._created = [(ref, size) for ref, size in self._created if ref.cdata not in gone]
        return sum(size for _, size in self._created)


def count_calls(layers: Sequence[nn.Module]) -> list[list[int]]:
    """Return the numbers of calls of each layer's attention and mlp, which change from now on."""
    calls = [[0, 0] for _ in layers]
    for number, layer in enumerate(layers):
        for part, module in enumerate((layer.attention, layer.mlp)):

            def counted(x: Tensor, forward: Any = module.forward, number: int = number, part: int = part) -> Any:
                calls[number][part] += 1
                return forward(x)

            module.forward = counted  # a hook would not see part.forward(x)
    return calls


def two_steps(run: Run, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for each step its output, calls, bytes, gradients, and the generator's state at its end."""
    model = make_model(case)
    calls, steps = count_calls(model["layers"]), []
    torch.manual_seed(case["draws"])
    for step in range(2):
        generator = torch.Generator().manual_seed(case["seed"] + step)
        shape = case["batch"], case["length"]
        x = model["embedding"](torch.randint(TOKENS, shape, generator=generator))
        target = torch.randn(*shape, case["width"], generator=generator)
        memory = Memory([x, target, *model.parameters()])
        gc.collect()
        gc.disable()
        with memory if case["is_measured"] else contextlib.nullcontext():
            y = run(model["layers"], x, case["what"])
            kept, forward = memory.num_bytes(), [list(parts) for parts in calls]
            loss = (y - target).square().mean()
            loss.backward()
        gc.enable()
        steps.append(
            {
                "output": y.detach(),
                "kept": kept,
                "peak": memory.peak,
                "forward": forward,
                "calls": [list(parts) for parts in calls],
                "gradients": {name: p.grad for name, p in model.named_parameters()},
                "state": torch.get_rng_state(),
            }
        )
        for p in model.parameters():
            p.grad = None
        for parts in calls:
            parts[:] = [0, 0]
    return steps


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [two_steps(learner.run, one) for one in case["cases"]]
