"""ZeRO stage 2 with threads as ranks: gradients, and the parameters after the ranks updated their partitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from threads_axis import on_every_rank
from torch import nn

from frog.train.parallel.data.zero2 import Unit, Zero2, units_of


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batch(rank: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_that_update_their_parts_equal_one_process_with_all_samples(size: int) -> None:
    learning_rate = 0.1
    alone = model()
    for rank in range(size):
        (alone(batch(rank)).square().mean() / size).backward()
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter.sub_(parameter.grad, alpha=learning_rate)
    expected = [parameter.detach().clone() for parameter in alone.parameters()]
    models = [model() for _ in range(size)]

    def take_step(shard: Any) -> list[torch.Tensor]:
        mine = models[shard.rank]
        units = [Unit(named, shard) for named in units_of(dict(mine.named_parameters())).values() if named]
        zero2 = Zero2(units, shard, shard.alone())
        for _ in range(2):  # the second step must not see the gradients of the first
            zero2.zero()
            zero2.before_backward(last=True)
            mine(batch(shard.rank)).square().mean().backward()
            zero2.after_backward()
            zero2.finish()
        for unit in units:
            unit.partition.data.sub_(unit.partition.grad, alpha=learning_rate)
        zero2.gather()
        return [parameter.detach().clone() for parameter in mine.parameters()]

    for found in on_every_rank(size, take_step):
        for own, right in zip(found, expected, strict=True):
            torch.testing.assert_close(own, right)
