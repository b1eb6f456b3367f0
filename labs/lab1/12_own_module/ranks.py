"""Run a classifier with given weights, in evaluation and in training, at two sizes."""

from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

SIZES = (
    {"vocab_size": 11, "width": 6, "ffn_width": 10, "num_blocks": 3, "num_classes": 4},
    {"vocab_size": 13, "width": 8, "ffn_width": 5, "num_blocks": 2, "num_classes": 3},
)
BATCHES = ((5, 7), (3, 3), (1, 4))
DROPOUT = 0.2
WEIGHTS = torch.tensor([1.0, -2.0, 3.0, -0.5])
"""Weights of the classes in the sum whose gradient is taken."""


def shapes_of(sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all weights."""
    D, F = sizes["width"], sizes["ffn_width"]
    found: dict[str, tuple[int, ...]] = {"embed.weight": (sizes["vocab_size"], D)}
    for n in range(sizes["num_blocks"]):
        parts = {"norm.weight": (D,), "norm.bias": (D,), "up.weight": (F, D), "up.bias": (F,)}
        parts |= {"down.weight": (D, F), "down.bias": (D,)}
        found |= {f"blocks.{n}.{name}": shape for name, shape in parts.items()}
    return found | {"head.weight": (sizes["num_classes"], D), "head.bias": (sizes["num_classes"],)}


def make_weights(seed: int, sizes: dict[str, int]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes_of(sizes).items()}


def make_tokens(seed: int, B: int, T: int, vocab_size: int) -> Tensor:
    return torch.randint(vocab_size, (B, T), generator=torch.Generator().manual_seed(seed + 100 * B + T))


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    found = []
    for sizes in SIZES:
        try:
            model = learner.TextClassifier(**sizes, dropout=DROPOUT)
        except AttributeError as error:
            return {"no model": str(error)}
        own = dict(model.named_parameters())
        result: dict[str, Any] = {
            "shapes": {name: tuple(p.shape) for name, p in model.state_dict().items()},
            "trained": sum(p.numel() for p in own.values() if p.requires_grad),
            "imported": blocks_are_imported(model),
        }
        fits = result["shapes"] == shapes_of(sizes)
        if fits:
            model.load_state_dict(make_weights(case["seed"], sizes))
        model.eval()
        tokens = [make_tokens(case["seed"], B, T, sizes["vocab_size"]) for B, T in BATCHES]
        result["scores"] = [attempt(model, one) for one in tokens]
        result["again"] = [attempt(model, one) for one in tokens]
        result["gradients"] = gradients_of(model, tokens[0]) if fits else {}
        still = learner.TextClassifier(**sizes, dropout=0.0)
        with mock.patch.object(nn.functional, "dropout", lambda x, *_, **__: x):
            result["without dropout"] = [attempt(still, tokens[0]) for _ in range(2)]
        model.train()
        torch.manual_seed(case["seed"])
        result["training"] = [[attempt(model, tokens[0]) for _ in range(case["times"])]] if fits else []
        found.append(result)
    return found


def blocks_are_imported(model: nn.Module) -> bool:
    import layers

    return any(type(part) is layers.ResidualBlock for part in model.modules())


def gradients_of(model: nn.Module, tokens: Tensor) -> Any:
    """Return the gradient of a weighted sum of the scores, by name, or the text of an error."""
    try:
        scores = model(tokens)
        (scores * WEIGHTS[: scores.shape[-1]]).sum().backward()
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return {name: p.grad for name, p in model.named_parameters()}


@torch.no_grad()
def attempt(model: nn.Module, tokens: Tensor) -> Any:
    """Return scores, or the text of an error."""
    try:
        return model(tokens)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
