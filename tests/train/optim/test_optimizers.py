"""Every optimizer updates whole parameters and runs of them identically, and most equal torch's bit for bit.

An optimizer that does not equal torch's bit for bit has its oracle in a separate file, such as test_muon.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import LIMIT_S
from torch import nn

from frog.core.config import OptimizerConfig
from frog.core.config.optimizers import OPTIMIZERS
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.optim.eager import EagerSGD
from frog.train.optim.tensors import UpdatedTensor, by_decay, decay_groups
from frog.train.parallel.data.flat import FlatParameters, Partition

STEP = """
import sys, torch
from frog.core.config import OptimizerConfig
from frog.core.config.optimizers import OPTIMIZERS
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.optim.tensors import UpdatedTensor
weight = torch.nn.Parameter(torch.ones(2, 2))
for name in OPTIMIZERS:
    optimizer = build_optimizer(OptimizerConfig(name), [UpdatedTensor.of("weight", weight)])
    weight.square().sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
sys.exit("torch._dynamo" in sys.modules)
"""
DECAY = 0.1
CONFIGS = {
    "adamw": OptimizerConfig("adamw", learning_rate=1e-2, weight_decay=DECAY),
    "sgd": OptimizerConfig("sgd", learning_rate=1e-2, weight_decay=DECAY),
    "sgd without momentum": OptimizerConfig("sgd", learning_rate=1e-2, weight_decay=DECAY, momentum=0.0),
    "muon": OptimizerConfig("muon", learning_rate=1e-2, weight_decay=DECAY),
}
TORCH: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9),
    "sgd without momentum": lambda groups: torch.optim.SGD(groups, lr=1e-2),
}
SHARES = [
    (case, num_shares)
    for case, config in CONFIGS.items()
    for num_shares in (1, 3)
    if num_shares == 1 or not config.entry.needs_whole_matrices
]
Named = dict[str, nn.Parameter]


def parameters() -> Named:
    torch.manual_seed(1)
    shapes = {"layers.0.norm": (24,), "layers.0.matrix": (16, 24), "bias": (16,), "embedding": (3, 5)}
    return {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


def take_steps(named: Named, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Run three steps on the sum of fourth powers, whose gradient changes with the weights."""
    for _ in range(3):
        for parameter in named.values():
            if parameter.grad is not None:
                parameter.grad.zero_()
        torch.stack([parameter.pow(4).sum() for parameter in named.values()]).sum().backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()


def torchs(case: str) -> tuple[Named, dict[str, dict[str, Any]]]:
    """Return weights and state after torch's steps."""
    named = parameters()
    groups = [
        {"params": [p for p in named.values() if p.dim() == 2], "weight_decay": DECAY},
        {"params": [p for p in named.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = TORCH[case](groups)
    take_steps(named, [optimizer])
    return named, {name: dict(optimizer.state[parameter]) for name, parameter in named.items()}


def over_whole_parameters(config: OptimizerConfig) -> tuple[Named, dict[str, dict[str, Any]]]:
    """Return weights and state after the steps of Frog's optimizer, with one tensor per parameter."""
    named = parameters()
    optimizer = build_optimizer(config, [UpdatedTensor.of(name, parameter) for name, parameter in named.items()])
    take_steps(named, [optimizer])
    return named, {name: dict(optimizer.state[parameter]) for name, parameter in named.items()}


def test_every_optimizer_has_a_case_and_an_oracle() -> None:
    assert {config.name for config in CONFIGS.values()} == set(OPTIMIZERS)
    for case in CONFIGS.keys() - TORCH.keys():
        assert (Path(__file__).parent / f"test_{case}.py").is_file()


@pytest.mark.parametrize("case", TORCH)
def test_updates_of_whole_parameters_equal_torchs(case: str) -> None:
    ours, our_state = over_whole_parameters(CONFIGS[case])
    theirs, their_state = torchs(case)
    for name, parameter in ours.items():
        assert torch.equal(parameter, theirs[name]), name
        for key in CONFIGS[case].state:
            assert torch.equal(our_state[name][key], their_state[name][key]), (name, key)


@pytest.mark.parametrize(("case", "num_shares"), SHARES)
def test_updates_of_a_flat_vector_equal_those_of_whole_parameters(case: str, num_shares: int) -> None:
    named, config = parameters(), CONFIGS[case]
    flat = FlatParameters(named, multiple=num_shares)
    grad = torch.zeros_like(flat.data)
    flat.view_gradients(grad)
    length = flat.size // num_shares
    bounds = [(number * length, (number + 1) * length) for number in range(num_shares)]
    shares = [Partition(flat, start, end, flat.data[start:end], grad[start:end]) for start, end in bounds]
    optimizers = [build_optimizer(config, share.tensors) for share in shares]
    take_steps(named, optimizers)
    expected, expected_state = over_whole_parameters(config)
    for name, parameter in named.items():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-6, atol=1e-7)
    for share, optimizer in zip(shares, optimizers, strict=True):
        for one in share.tensors:
            for run in one.slices:
                for key in config.state:
                    whole = expected_state[run.name][key].view(-1)[run.first : run.first + run.end - run.start]
                    found = optimizer.state[one.tensor][key][run.start : run.end]
                    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CONFIGS)
def test_optimizer_state_exists_before_the_first_step(case: str) -> None:
    config, weight = CONFIGS[case], nn.Parameter(torch.ones(2, 3))
    optimizer = build_optimizer(config, [UpdatedTensor.of("weight", weight)])
    before = {key: value.clone() for key, value in optimizer.state[weight].items()}
    assert all(not value.any() for value in before.values())
    assert set(before) == {*config.state, *(["step"] if config.entry.counts_steps else [])}
    weight.grad = torch.ones(2, 3)
    optimizer.step()
    kept = {key for key, value in optimizer.state[weight].items() if value is not None}
    assert kept == set(before), "torch keeps state that a checkpoint would not contain"


@pytest.mark.slow
def test_optimizer_step_does_not_load_the_compiler() -> None:
    assert subprocess.run([sys.executable, "-c", STEP], timeout=LIMIT_S).returncode == 0


def test_nesterov_momentum_equals_torchs() -> None:
    """Oracle for diloco's outer step."""

    def stepped(kind: type[torch.optim.SGD]) -> torch.Tensor:
        torch.manual_seed(1)
        weight = nn.Parameter(torch.randn(8, 8))
        optimizer = kind([weight], 0.1, 0.9, nesterov=True)
        for _ in range(3):
            weight.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weight.detach()

    assert torch.equal(stepped(EagerSGD), stepped(torch.optim.SGD))


def test_unknown_optimizer_error_lists_the_known_names() -> None:
    (problem,) = OptimizerConfig("adam").problems()
    assert problem == "optimizer.name='adam': must be 'adamw', 'sgd' or 'muon'"


def test_matrices_decay_and_vectors_do_not() -> None:
    """Group the parameters of torch's own modules by hand: weights of embeddings and linear layers decay."""
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    tensors = [UpdatedTensor.of(name, parameter) for name, parameter in model.named_parameters()]
    decayed, others = decay_groups(tensors, 0.1)
    assert [id(one) for one in decayed["params"]] == [id(model[0].weight), id(model[2].weight)]
    assert [id(one) for one in others["params"]] == [id(model[1].weight), id(model[1].bias), id(model[2].bias)]
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    (only,) = by_decay([one for one in tensors if one.tensor.dim() == 1])
    assert len(only) == 3
    assert [group["weight_decay"] for group in decay_groups(only, 0.1)] == [0.0]
