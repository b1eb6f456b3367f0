"""A rank's report of one step: its numbers, its event and its texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from frog.train.parallel.strategy import Agreement
from frog.train.step import StepReport


def report(
    loss: float = 3.0, weights: tuple[float, ...] = (0.5, 0.5), local: float | None = 8.0, **changes: Any
) -> StepReport:
    batch: Any = SimpleNamespace(step=7, loss_weight_A=weights, ids_N=np.array([4, 9]))
    known: dict[str, Any] = {
        "batch": batch, "agreed": Agreement(loss=loss, loss_mean=2.5, grad_norm_local=local, stop=False),
        "grad_norm": 1.25, "learning_rate": 0.01, "loss_scale": None, "skipped": False, "step_tokens": 3000,
        "total_tokens": 21000, "start_ns": 10**9, "end_ns": 3 * 10**9,
    }  # fmt: skip
    return StepReport(**{**known, **changes})


@pytest.mark.parametrize(
    ("weights", "loss"), [((0.5, 0.5), 3.0), ((0.5, 0.25), 4.0), ((0.75, 0.75), 2.0), ((0.0, 0.0), 3.0), ((), 3.0)]
)
def test_loss_is_the_mean_over_this_ranks_labels(weights: tuple[float, ...], loss: float) -> None:
    assert report(weights=weights).loss == loss


@pytest.mark.parametrize(
    ("local", "loss_scale", "norm"), [(8.0, None, 8.0), (8.0, 4.0, 2.0), (None, None, None), (None, 4.0, None)]
)
def test_norm_of_the_own_gradient_has_no_loss_scale(
    local: float | None, loss_scale: float | None, norm: float | None
) -> None:
    assert report(local=local, loss_scale=loss_scale).grad_norm_local == norm


@pytest.mark.parametrize(("full", "mfu"), [(6000.0, 0.25), (None, None)])
def test_event_has_every_number(full: float | None, mfu: float | None) -> None:
    assert report(loss_scale=4.0, skipped=True).event(full_tokens_per_s=full, memory_bytes=55) == {
        "step": 7, "loss": 3.0, "loss_mean": 2.5, "grad_norm_local": 2.0, "grad_norm": 1.25, "learning_rate": 0.01,
        "tokens": 21000, "tokens_per_s": 1500.0, "mfu": mfu, "memory_bytes": 55, "loss_scale": 4.0, "skipped": True,
        "sample_ids": [4, 9], "end_ns": 3 * 10**9,
    }  # fmt: skip


def test_progress_bar_shows_the_mean_loss_and_the_throughput() -> None:
    assert report().brief == "loss 2.500, 1.50 k tokens/s"
