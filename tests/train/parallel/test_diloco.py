"""The outer step alone. tests/train/prove compares full rounds with one process, tests/worlds covers runs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from threads_axis import on_every_rank
from torch import Tensor, nn

from frog.core.config import ModelConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.errors import NonFiniteError
from frog.train.data import Batch
from frog.train.finite import overflowed
from frog.train.parallel.data.diloco import DiLoCo
from frog.train.parallel.strategy import Agreement


def rounds(size: int, num_rounds: int, **strategy: Any) -> list[list[Tensor]]:
    """Return the weights of each rank after each round; a training step is a random change that differs per rank."""

    def work(axis: Any) -> list[Tensor]:
        weight = nn.Parameter(torch.arange(6.0).view(2, 3))
        diloco = DiLoCo({"w": weight}, axis, StrategyConfig(name="diloco", **strategy))
        found = []
        for number in range(num_rounds):
            weight.data += change(axis.rank, number)
            diloco.gather()  # a step within the round: nothing happens
            weight.data += change(axis.rank, number + 100)
            diloco.finish()
            diloco.gather()
            assert torch.equal(diloco.weights("w", weight), weight)
            found.append(weight.detach().clone())
        return found

    return on_every_rank(size, work)


def change(rank: int, number: int) -> Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(1000 * rank + number)) / 10


def test_outer_step_with_rate_one_and_no_momentum_averages_weights() -> None:
    weights = torch.arange(6.0).view(2, 3)
    found = rounds(3, 2, outer_learning_rate=1.0, outer_momentum=0.0)
    for number in range(2):
        own = [weights + change(rank, number) + change(rank, number + 100) for rank in range(3)]
        weights = torch.stack(own).mean(0)
        for rank in range(3):
            torch.testing.assert_close(found[rank][number], weights)


@pytest.mark.parametrize("compression", ["off", "int8"])
def test_ranks_end_a_round_bitwise_equal(compression: str) -> None:
    first, *others = rounds(3, 4, compression=compression)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_evaluation_uses_outer_weights() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    axis: Any = SimpleNamespace(size=1, rank=0)
    diloco = DiLoCo({"w": weight}, axis, StrategyConfig(name="diloco"))
    weight.data += 1
    assert torch.equal(diloco.weights("w", weight), torch.ones(2, 3))
    diloco.train(False)
    diloco.train(False)
    assert torch.equal(weight, torch.ones(2, 3))
    diloco.train(True)
    assert torch.equal(weight, 2 * torch.ones(2, 3))


def test_non_finite_local_gradient_raises_without_communication() -> None:
    """At a round's end ranks agree on the loss but not on the norm: a collective here would wait forever."""
    run: Any = SimpleNamespace(world=SimpleNamespace(rank=1), mesh=SimpleNamespace(readers=[0, 1]))
    tokens = torch.zeros(1, 1, 2, dtype=torch.long)
    batch = Batch(4, np.array([17]), tokens, tokens, (1.0,))
    agreed = Agreement(2.0, 2.0, 1.0, stop=False, own_gradient=True)
    with pytest.raises(NonFiniteError, match=r"rank 1: loss 2, gradient norm inf, samples \[17\]"):
        overflowed(run, batch, agreed, math.inf, None)


MODEL = ModelConfig(64, 32, 64, 4, 4, 4, 32)


@pytest.mark.parametrize(
    ("strategy", "precision", "said"),
    [
        ({"tp": 2}, "fp32", "strategy.name='diloco' with strategy.tp=2: each replica must be one rank"),
        ({"cp": 2}, "fp32", "strategy.name='diloco' with strategy.cp=2"),
        ({"shard": 2}, "fp32", "diloco shards nothing"),
        ({"implementation": "torch"}, "fp32", "it does not implement this strategy; frog does"),
        ({"compression": "fp16"}, "fp32", "strategy.compression='fp16': a communication hook of torch's ddp"),
        (
            {},
            "fp16",
            "train.precision='fp16' with strategy.name='diloco': each rank would have its own loss scale",
        ),
        ({"name": "ddp", "compression": "int8"}, "fp16", "the overflow of a skipped step"),
        ({"inner_steps": 0}, "fp32", "strategy.inner_steps=0: must be at least 1"),
        ({"outer_momentum": 1.0}, "fp32", "strategy.outer_momentum=1.0: must lie in [0, 1)"),
        ({"outer_learning_rate": 0.0}, "fp32", "strategy.outer_learning_rate=0.0: must be above 0"),
    ],
)
def test_unsupported_diloco_settings_are_rejected(strategy: dict[str, Any], precision: Any, said: str) -> None:
    train = TrainConfig(precision=precision, grad_accum=2)
    config = RunConfig(model=MODEL, train=train, strategy=StrategyConfig(**{"name": "diloco", **strategy}))
    assert any(said in problem for problem in config.problems() + config.world_problems(4))


def test_ranks_synchronize_at_end_of_round_and_run() -> None:
    strategy = StrategyConfig(name="diloco", inner_steps=3)
    config = RunConfig(model=MODEL, train=TrainConfig(steps=8), strategy=strategy)
    assert [step for step in range(1, 9) if config.meets(step)] == [3, 6, 8]
    assert all(RunConfig(model=MODEL).meets(step) for step in range(1, 9))
