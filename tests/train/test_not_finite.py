"""The agreement that a step's loss and gradient are finite, with what other ranks would report."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from frog.core.errors import NonFiniteError
from frog.train.finite import overflowed
from frog.train.parallel.strategy import Agreement

NAN, INF = math.nan, math.inf


class Ranks:
    """Rank 1 of three, of which the last reads no samples; it knows what the others would send."""

    def __init__(self, *others: tuple[float, float]) -> None:
        self.said: list[str] = []
        self.num_gathers = 0
        self._others = others
        self.run: Any = SimpleNamespace(
            log=SimpleNamespace(say=self.said.append),
            mesh=SimpleNamespace(readers={0, 1}),
            world=SimpleNamespace(rank=1, gather_rows=self._gather),
        )

    def _gather(self, own: torch.Tensor) -> torch.Tensor:
        self.num_gathers += 1
        if own.is_floating_point():
            return torch.stack([torch.tensor(self._others[0]), own, torch.tensor(self._others[1])])
        return torch.stack([own - 10, own, own + 10])


BATCH: Any = SimpleNamespace(step=7, ids_N=np.array([20, 21]))


def culprits(agreed: Agreement, grad_norm: float, *others: tuple[float, float]) -> tuple[list[tuple[Any, ...]], int]:
    """Return rank, loss, norm, whether its loss is to blame, and samples of each named rank; and the gathers."""
    ranks = Ranks(*others)
    with pytest.raises(NonFiniteError) as caught:
        overflowed(ranks.run, BATCH, agreed, grad_norm, None)
    assert caught.value.facts.cause == "not_finite"
    found = caught.value.facts.not_finite
    return [(one.rank, one.loss, one.grad_norm, one.of_loss, one.sample_ids) for one in found], ranks.num_gathers


def agreed(loss: float = 1.0, loss_mean: float = 1.0, local: float | None = 2.0, **more: bool) -> Agreement:
    return Agreement(loss=loss, loss_mean=loss_mean, grad_norm_local=local, stop=False, **more)


def test_finite_step_communicates_nothing() -> None:
    ranks = Ranks()
    assert not overflowed(ranks.run, BATCH, agreed(loss=NAN), 1.0, 8.0)
    assert (ranks.said, ranks.num_gathers) == ([], 0)


@pytest.mark.parametrize(
    ("loss_mean", "grad_norm", "scale", "skips"),
    [(1.0, INF, 2.0, True), (1.0, NAN, 65536.0, True), (1.0, INF, 1.0, False), (1.0, INF, None, False),
     (NAN, 1.0, 2.0, False), (INF, INF, 2.0, False)],
)  # fmt: skip
def test_overflow_of_fp16_skips_the_step_and_anything_else_is_an_error(
    loss_mean: float, grad_norm: float, scale: float | None, skips: bool
) -> None:
    ranks = Ranks((1.0, 1.0), (1.0, 1.0))
    if skips:
        assert overflowed(ranks.run, BATCH, agreed(loss_mean=loss_mean), grad_norm, scale)
        assert ranks.said == [f"step 7: the gradient overflowed at loss scale {scale:,.0f}: step skipped, scale halved"]
    else:
        with pytest.raises(NonFiniteError):
            overflowed(ranks.run, BATCH, agreed(loss_mean=loss_mean), grad_norm, scale)
        assert ranks.said == []


@pytest.mark.parametrize(
    ("agreement", "grad_norm", "others", "named", "num_gathers"),
    [
        # The mean is not finite: all ranks tell each other their own values.
        (agreed(NAN, NAN), NAN, ((1.0, 2.0), (1.0, 2.0)), [(1, "nan", "2", True, (20, 21))], 2),
        (
            agreed(1.0, NAN, INF),
            NAN,
            ((NAN, 2.0), (1.0, 2.0)),
            [(0, "nan", "2", True, (10, 11)), (1, "1", "inf", False, (20, 21))],
            2,
        ),
        (agreed(1.0, NAN), NAN, ((1.0, 2.0), (NAN, NAN)), [], 2),  # the last rank has no samples of its own
        (agreed(1.0, 1.0, None), INF, ((1.0, 2.0), (1.0, 2.0)), [], 2),
        # Nothing was reduced, or only the loss: this rank knows what is its own.
        (agreed(NAN, NAN, alone=True), 3.0, (), [(1, "nan", "3", True, (20, 21))], 0),
        (agreed(1.0, 1.0, None, alone=True), INF, (), [(1, "1", "inf", False, (20, 21))], 0),
        (agreed(1.0, 1.0, None, own_gradient=True), INF, (), [(1, "1", "inf", False, (20, 21))], 0),
        (
            agreed(1.0, NAN, None, own_gradient=True),
            INF,
            ((NAN, 2.0), (1.0, 2.0)),
            [(0, "nan", "2", True, (10, 11)), (1, "1", "inf", False, (20, 21))],
            2,
        ),
    ],
)
def test_ranks_whose_own_values_are_not_finite_are_named(
    agreement: Agreement,
    grad_norm: float,
    others: tuple[tuple[float, float], ...],
    named: list[tuple[Any, ...]],
    num_gathers: int,
) -> None:
    assert culprits(agreement, grad_norm, *others) == (named, num_gathers)


def test_error_says_the_values_and_the_samples() -> None:
    ranks = Ranks((NAN, 2.5), (1.0, 1.0))
    with pytest.raises(NonFiniteError) as caught:
        overflowed(ranks.run, BATCH, agreed(1.0, NAN), 0.125, None)
    assert caught.value.what.splitlines() == [
        "step 7: the loss or the gradient is not finite (mean loss nan, gradient norm 0.125); no weight was changed",
        "  rank 0: loss nan, gradient norm 2.5, samples [10, 11]",
    ]
    with pytest.raises(NonFiniteError) as caught:
        overflowed(Ranks((1.0, 2.0), (1.0, 2.0)).run, BATCH, agreed(), INF, None)
    assert caught.value.what.splitlines()[1:] == ["  each rank's own values are finite: their sum overflowed"]
