"""The optimizers are torch's AdamW and SGD, bit for bit, and leave torch's compiler where it is."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

from frog.config import OptimizerConfig
from frog.train.optimizer import EagerSGD, build_optimizer

CONFIG = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1)
STEP = """
import sys, torch
from frog.config import OptimizerConfig
from frog.train.optimizer import EagerSGD, build_optimizer
weight = torch.nn.Parameter(torch.ones(2, 2))
for optimizer in build_optimizer(OptimizerConfig(), [weight], []), EagerSGD([weight], 0.1, 0.9):
    weight.square().sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
sys.exit("torch._dynamo" in sys.modules)
"""


def trained(optimizer_of_weights: type[torch.optim.AdamW] | None) -> tuple[torch.Tensor, dict[str, object]]:
    """Weights and state after three steps, of ours or of that class."""
    torch.manual_seed(1)
    weight = nn.Parameter(torch.randn(8, 8))
    optimizer = build_optimizer(CONFIG, [weight], [])
    if optimizer_of_weights is not None:
        plain = optimizer_of_weights([weight], lr=1e-2, betas=(CONFIG.beta1, CONFIG.beta2), fused=True)
        plain.load_state_dict(optimizer.state_dict())
        optimizer = plain
    for _ in range(3):
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return weight.detach(), optimizer.state_dict()["state"][0]


def test_it_is_torchs() -> None:
    ours, theirs = trained(None), trained(torch.optim.AdamW)
    assert torch.equal(ours[0], theirs[0])
    assert all(torch.equal(ours[1][name], theirs[1][name]) for name in ("step", "exp_avg", "exp_avg_sq"))  # type: ignore[arg-type]
    assert not ours[0].requires_grad


def test_a_step_does_not_load_the_compiler() -> None:
    assert subprocess.run([sys.executable, "-c", STEP], timeout=100).returncode == 0


def test_so_is_sgd() -> None:
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
