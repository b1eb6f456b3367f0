"""The score on held-out text against a plain sum over the chosen windows, for one rank and for several."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from frog.train.evaluate import evaluate, spread

T = 4
TOKEN_BYTES = np.arange(50) % 3


class NumberedWindows:
    """Window n has the tokens n, n+1, ..., each below 50."""

    sequence_length = T

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def gather(self, ids: np.ndarray) -> np.ndarray:
        return np.asarray(ids)[:, None] + np.arange(T + 1)


class NumberedLoss:
    """Rank `rank` of `size`, whose loss of a token is its number; it knows what the others would add."""

    def __init__(self, rank: int = 0, size: int = 1, others: Tensor | None = None) -> None:
        self.others, self.own, self.batches, self.modes = others, torch.zeros(3), list[int](), list[bool]()
        dp = SimpleNamespace(rank=rank, size=size, all_reduce=self._add)
        self.mesh = SimpleNamespace(dp=dp, world=SimpleNamespace(device=torch.device("cpu")))

    def _add(self, totals: Tensor) -> None:
        self.own = totals.clone()
        if self.others is not None:
            totals += self.others

    def train(self, mode: bool = True) -> None:
        self.modes.append(mode)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        assert torch.equal(inputs + 1, labels)
        self.batches.append(len(labels))
        return labels.double().mean()


@pytest.mark.parametrize(
    ("count", "max_tokens", "batch_size", "batches"),
    [(7, 28, 3, [3, 3, 1]), (7, 28, 7, [7]), (7, 1000, 4, [4, 3]), (40, 19, 2, [2, 2]), (3, 1, 5, [1]), (1, 4, 1, [1])],
)
def test_score_is_the_mean_over_the_chosen_windows(
    count: int, max_tokens: int, batch_size: int, batches: list[int]
) -> None:
    strategy: Any = NumberedLoss()
    windows: Any = NumberedWindows(count)
    score = evaluate(strategy, windows, TOKEN_BYTES, max_tokens=max_tokens, batch_size=batch_size)
    labels = [first + place for first in spread(count, max_tokens // T).tolist() for place in range(1, T + 1)]
    assert (strategy.batches, strategy.modes) == (batches, [False, True])
    assert score.tokens == len(labels)
    assert score.loss == pytest.approx(sum(labels) / len(labels))
    assert score.perplexity == pytest.approx(math.exp(score.loss))
    num_bytes = sum(int(TOKEN_BYTES[label]) for label in labels)
    assert score.bits_per_byte == pytest.approx(sum(labels) / math.log(2) / num_bytes)


def test_ranks_share_the_windows_and_run_equally_often() -> None:
    """Seven windows for three ranks in batches of two: those without a window repeat the first, and do not count it."""
    windows: Any = NumberedWindows(7)
    alone = evaluate(NumberedLoss(), windows, TOKEN_BYTES, max_tokens=28, batch_size=7)  # type: ignore[arg-type]
    ranks = [NumberedLoss(rank, 3) for rank in range(3)]
    for rank in ranks:
        evaluate(rank, windows, TOKEN_BYTES, max_tokens=28, batch_size=2)  # type: ignore[arg-type]
    assert [rank.batches for rank in ranks] == [[2, 1], [2, 1], [2, 1]]
    assert [rank.own[1].item() for rank in ranks] == [3 * T, 2 * T, 2 * T]
    first: Any = NumberedLoss(0, 3, ranks[1].own + ranks[2].own)
    assert evaluate(first, windows, TOKEN_BYTES, max_tokens=28, batch_size=2) == alone


def test_perplexity_of_a_model_that_diverged_and_text_without_bytes_are_numbers() -> None:
    class Diverged(NumberedLoss):
        def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
            return torch.tensor(2000.0)

    windows: Any = NumberedWindows(1)
    strategy: Any = Diverged()
    score = evaluate(strategy, windows, np.zeros(50, dtype=int), max_tokens=4, batch_size=1)
    assert (score.loss, score.perplexity) == (2000.0, math.exp(700.0))
    assert score.bits_per_byte == pytest.approx(2000 * T / math.log(2))


@pytest.mark.parametrize(
    ("count", "most", "chosen"),
    [(10, 10, list(range(10))), (10, 2, [0, 9]), (10, 4, [0, 3, 6, 9]), (10, 0, [0]), (3, 9, [0, 1, 2]), (1, 1, [0])],
)
def test_windows_are_spread_evenly_from_the_first_to_the_last(count: int, most: int, chosen: list[int]) -> None:
    assert spread(count, most).tolist() == chosen
