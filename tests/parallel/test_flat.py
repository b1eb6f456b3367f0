from __future__ import annotations

from pathlib import Path

import pytest
import torch

from frog.comm import World
from frog.config import OptimizerConfig, load_model_config
from frog.core.env import world_env
from frog.model import TinyTransformer
from frog.parallel import FlatParameters
from frog.train.optimizer import build_optimizer, learning_rate, named_state

CONFIG = load_model_config(Path(__file__).parents[2] / "config" / "config.json")


def model_and_batch(seed: int = 0) -> tuple[TinyTransformer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    tokens = torch.randint(0, CONFIG.vocab_size, (2, 9))
    return TinyTransformer(CONFIG), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def test_parameters_and_gradients_are_views_and_keep_their_values() -> None:
    model, tokens, labels = model_and_batch()
    twin, _, _ = model_and_batch()
    flat = FlatParameters(model, num_tail=3)
    for (name, mine), (_, theirs) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() % 64 == flat.data.data_ptr() % 64
        assert flat.view(flat.data, name).data_ptr() == mine.data_ptr()
    model(tokens, labels).backward()
    twin(tokens, labels).backward()
    for name, parameter in twin.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(flat.view(flat.grad, name), parameter.grad, rtol=1e-5, atol=1e-8)
    squares = [p.grad.double().square().sum() for p in twin.parameters() if p.grad is not None]
    assert flat.norm().item() == pytest.approx(torch.stack(squares).sum().sqrt().item(), rel=1e-6)
    flat.clip(flat.norm().item(), 0.1)
    assert flat.norm().item() == pytest.approx(0.1)
    flat.zero()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_the_norm_of_a_long_gradient_is_exact() -> None:
    flat = FlatParameters(torch.nn.Linear(3000, 7001, bias=False))
    flat.grad.normal_()
    assert flat.norm().item() == pytest.approx(flat.grad.double().norm().item(), rel=1e-6)


def test_a_tied_weight_is_there_once_and_a_frozen_one_not_at_all() -> None:
    model, _, _ = model_and_batch()
    model.norm.weight.requires_grad_(False)
    flat = FlatParameters(model)
    assert "norm.weight" not in flat.spans
    assert "lm_head.weight" not in flat.spans
    assert model.lm_head.weight.data_ptr() == model.embed_tokens.weight.data_ptr()


def test_matrices_decay_and_vectors_do_not() -> None:
    model, _, _ = model_and_batch()
    flat = FlatParameters(model)
    for name, parameter in model.named_parameters():
        assert (flat.spans[name][0] < flat.split) == (parameter.dim() >= 2)


def test_five_steps_equal_adamw_over_separate_tensors() -> None:
    model, tokens, labels = model_and_batch()
    twin, _, _ = model_and_batch()
    config = OptimizerConfig()
    flat = FlatParameters(model)
    optimizer = build_optimizer(flat, config)
    groups = [
        {"params": [p for p in twin.parameters() if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in twin.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    oracle = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.eps)
    for _ in range(5):
        model(tokens, labels).backward()
        twin(tokens, labels).backward()
        optimizer.step()
        oracle.step()
        flat.zero()
        oracle.zero_grad()
        # The same gradients but for the order of sums in two kernels, which Adam makes large where they are near zero.
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    state = named_state(optimizer, flat)
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(
            state[f"optimizer/exp_avg/{name}"], oracle.state[parameter]["exp_avg"], rtol=1e-3, atol=1e-6
        )
    assert state["optimizer/step/decayed"].item() == 5


def test_reduce_alone_returns_the_scalars() -> None:
    model, _, _ = model_and_batch()
    flat = FlatParameters(model, num_tail=2)
    world = World(world_env(), torch.device("cpu"), timeout_s=10)
    assert flat.reduce(world, (torch.tensor(1.5), 2.0)) == ([1.5, 2.0], [1.5, 2.0])


def test_learning_rate_warms_up_and_falls_to_the_minimum() -> None:
    config = OptimizerConfig(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=4)
    rates = [learning_rate(step, 20, config) for step in range(1, 21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    assert learning_rate(11, 20, OptimizerConfig(warmup_steps=0)) > 0
