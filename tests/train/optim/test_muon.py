"""Muon equals the published formula in float64, and torch's Muon within bfloat16 rounding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from frog.core.config import ModelConfig, OptimizerConfig, RunConfig, StrategyConfig
from frog.core.errors import ConfigError
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.optim.muon import orthogonalize
from frog.train.optim.tensors import Slice, UpdatedTensor
from frog.train.parallel.data.flat import FlatParameters, Partition

RATE, DECAY, NUM_STEPS = 1e-2, 0.1, 4
CONFIG = OptimizerConfig("muon", learning_rate=RATE, weight_decay=DECAY, muon_rate_factor=3.0)
SHAPES = {
    "embed_tokens.weight": (12, 8),
    "layers.0.wide.weight": (8, 24),
    "layers.0.tall.weight": (24, 8),
    "layers.0.square.weight": (8, 8),
    "layers.0.experts": (3, 8, 12),
    "layers.0.norm.weight": (8,),
    "lm_head.weight": (12, 8),
}


def by_singular_values(x_RC: Tensor) -> Tensor:
    """Compute the Newton-Schulz iteration in float64, as a polynomial of the singular values."""
    left, values, right = torch.linalg.svd(x_RC.double(), full_matrices=False)
    values = values / values.square().sum(-1, keepdim=True).sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ torch.diag_embed(values) @ right


def gradient(name: str, step: int) -> Tensor:
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(100 * step + list(SHAPES).index(name)))


def start(name: str) -> Tensor:
    return gradient(name, step=0)


def by_formula(name: str) -> Tensor:
    """Return a layer's matrix after the steps of Muon, in float64."""
    weight, momentum = start(name).double(), torch.zeros(SHAPES[name], dtype=torch.float64)
    rows, columns = SHAPES[name][-2:]
    for step in range(1, NUM_STEPS + 1):
        grad = gradient(name, step).double()
        momentum = 0.95 * momentum + 0.05 * grad
        update = by_singular_values(0.05 * grad + 0.95 * momentum)
        weight = weight - 3 * RATE * (DECAY * weight + math.sqrt(max(1, rows / columns)) * update)
    return weight


def by_torch(name: str) -> Tensor:
    """Return the weights after the steps of torch's AdamW, or of its Muon for a layer's matrix."""
    weight = nn.Parameter(start(name))
    decay = DECAY if weight.dim() >= 2 else 0.0
    optimizer: torch.optim.Optimizer = torch.optim.AdamW([weight], RATE, betas=(0.9, 0.95), weight_decay=decay)
    if name.startswith("layers.") and weight.dim() == 2:
        optimizer = torch.optim.Muon([weight], 3 * RATE, DECAY)
    for step in range(1, NUM_STEPS + 1):
        weight.grad = gradient(name, step)
        optimizer.step()
    return weight.detach()


@pytest.fixture(scope="module")
def ours() -> dict[str, Tensor]:
    """Return all weights after the steps of Frog's Muon on one flat vector."""
    named = {name: nn.Parameter(start(name)) for name in SHAPES}
    flat = FlatParameters(named)
    grad = torch.zeros_like(flat.data)
    optimizer = build_optimizer(CONFIG, Partition(flat, 0, flat.size, flat.data, grad).tensors)
    for step in range(1, NUM_STEPS + 1):
        for name in SHAPES:
            flat.view(grad, name).copy_(gradient(name, step))
        optimizer.step()
    return {name: parameter.detach() for name, parameter in named.items()}


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (16, 16), (1, 5), (3, 8, 12)])
def test_newton_schulz_equals_a_polynomial_of_the_singular_values(shape: tuple[int, ...]) -> None:
    x_RC = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = orthogonalize(x_RC)
    torch.testing.assert_close(found.double(), by_singular_values(x_RC), rtol=0, atol=1e-4)
    values = torch.linalg.svdvals(found)
    assert ((values > 0.65) & (values < 1.25)).all()


def test_zero_gradient_stays_zero() -> None:
    assert torch.equal(orthogonalize(torch.zeros(4, 6)), torch.zeros(4, 6))


@pytest.mark.parametrize("name", [name for name in SHAPES if name.startswith("layers.") and len(SHAPES[name]) >= 2])
def test_layer_matrices_are_updated_by_the_formula(ours: dict[str, Tensor], name: str) -> None:
    torch.testing.assert_close(ours[name].double(), by_formula(name), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in SHAPES if len(SHAPES[name]) < 3])
def test_updates_equal_torchs_muon_and_adamw(ours: dict[str, Tensor], name: str) -> None:
    is_rounded = name.startswith("layers.") and len(SHAPES[name]) == 2  # torch's Muon computes in bfloat16
    tolerance = 0.03 * NUM_STEPS * 3 * RATE if is_rounded else 1e-6
    torch.testing.assert_close(ours[name], by_torch(name), rtol=0, atol=tolerance)


def test_sharded_matrix_is_an_error() -> None:
    half = UpdatedTensor(
        nn.Parameter(torch.zeros(32)), (Slice("layers.0.wide.weight", (8, 8), 0, 0, 32),), decayed=True
    )
    with pytest.raises(ConfigError, match=r"32 of the 64 elements of layers\.0\.wide\.weight, but Muon needs whole"):
        build_optimizer(CONFIG, [half])


@pytest.mark.parametrize(
    ("strategy", "cut"),
    [
        (StrategyConfig("zero2"), "strategy.name='zero2'"),
        (StrategyConfig(tp=2), "strategy.tp=2"),
        (StrategyConfig("zero1", implementation="torch"), "strategy.name='zero1'"),
    ],
)
def test_run_file_that_shards_matrices_is_rejected(strategy: StrategyConfig, cut: str) -> None:
    run = RunConfig(ModelConfig(97, 32, 64, 2, 4, 2, 256), optimizer=CONFIG, strategy=strategy)
    (problem,) = run.problems()
    assert problem.startswith(f"optimizer.name='muon' with {cut}: this optimizer needs whole matrices")
