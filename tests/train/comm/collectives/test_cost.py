"""The choice of algorithm: from a fitted line that is measured, saved, and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.core.errors import UsageError
from frog.train.comm.collectives.cost import Costs, cost_file, save_costs, saved_costs

SIZES = (64, 4096, 1 << 20)


def test_fit_recovers_a_line() -> None:
    times_s = [5e-5 + size * 7e-10 for size in SIZES]
    found = Costs.fit(SIZES, times_s, gamma_s_per_byte=2e-10)
    assert found.alpha_s == pytest.approx(5e-5)
    assert found.beta_s_per_byte == pytest.approx(5e-10)
    with pytest.raises(ValueError, match="two sizes"):
        Costs.fit([64, 64], [1e-5, 2e-5], 2e-10)


def test_small_messages_use_few_steps_and_large_ones_few_bytes() -> None:
    costs = Costs()
    for num_ranks in (2, 3, 4, 8):
        assert not costs.takes_ring(4 << 10, num_ranks)
        assert costs.takes_ring(64 << 20, num_ranks)
    assert Costs.from_text(costs.to_text()) == costs


@pytest.mark.parametrize(
    ("num_ranks", "steps"), [(2, 1), (3, 1 + 2), (4, 2), (5, 2 + 2), (7, 2 + 2), (8, 3), (9, 3 + 2)]
)
def test_times_follow_from_the_steps_of_each_algorithm(num_ranks: int, steps: int) -> None:
    """Doubling sends whole buffers; ranks beyond a power of two add one step before and one after it."""
    costs = Costs(alpha_s=1.0, beta_s_per_byte=10.0, gamma_s_per_byte=100.0)
    assert costs.doubling_s(3, num_ranks) == steps * (1 + 3 * 110)
    ring_s = 2 * (num_ranks - 1) * (1 + 12 / num_ranks * 10) + (num_ranks - 1) * 12 / num_ranks * 100
    assert costs.ring_s(12, num_ranks) == pytest.approx(ring_s)


def test_measured_costs_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROG_CACHE_DIR", str(tmp_path))
    assert saved_costs() == Costs()
    costs = Costs(1e-4, 2e-9, 3e-10)
    save_costs(costs)
    assert saved_costs() == costs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "collectives.json"),
        ('{"format": 1, "alpha_s": -1, "beta_s_per_byte": 1e-9, "gamma_s_per_byte": 1e-9}', "alpha_s=-1"),
        ("[]", "collectives.json"),
    ],
)
def test_impossible_costs_are_rejected(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROG_CACHE_DIR", str(tmp_path))
    cost_file().write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        saved_costs()
    assert "frog collectives tune" in str(caught.value)
