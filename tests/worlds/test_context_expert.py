"""Ring attention and expert parallelism in real worlds: each rank's part matches the whole; mutants do not match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from context_expert_worker import DENSE, MIXTURE, MUTANTS
from harness import Harness

pytestmark = pytest.mark.slow

WORKER = Path(__file__).parent / "context_expert_worker.py"
LIMITS = {
    "attention, bf16": 2e-2,  # y is rounded to bf16, and the gradients depend on it
    "cp, autocast": 0.1,  # a row's bf16 products are rounded differently in matrices of other sizes
    "ep, autocast": 0.1,
}
"""Largest error beyond rtol 1e-5, as a fraction of the tensor's largest element, if it is not 1e-5."""


@pytest.fixture(scope="module", params=[2, 4])
def results(request: pytest.FixtureRequest, harness: Harness, tmp_path_factory: Any) -> list[dict[str, Any]]:
    """Return the results of each rank, from one world for all cases."""
    folder = tmp_path_factory.mktemp(f"world_{request.param}")
    harness.run("frog", "run", "--nproc", str(request.param), "--", str(WORKER), str(folder))
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(request.param)]


def test_every_rank_matches_its_part_of_the_whole(results: list[dict[str, Any]]) -> None:
    assert len(results[0]["errors"]) == (20 if len(results) == 4 else 17)
    wrong = {
        f"rank {rank}, {name}": error
        for rank, result in enumerate(results)
        for name, error in result["errors"].items()
        if not error <= LIMITS.get(name, 1e-5)
    }
    assert not wrong


def test_context_and_expert_mutants_are_detected(results: list[dict[str, Any]]) -> None:
    assert results[0]["mutants"].keys() == MUTANTS.keys()
    survivors = [name for name in MUTANTS if max(result["mutants"][name] for result in results) < 1e-3]
    assert not survivors


def test_context_and_expert_traffic_matches_the_plan(results: list[dict[str, Any]]) -> None:
    n, B, T, layers, e = len(results), 2, 32, DENSE.num_hidden_layers, 4
    ring = B * T // n * DENSE.num_key_value_heads * DENSE.head_dim
    rows = B * T * MIXTURE.num_experts_per_tok * MIXTURE.hidden_size
    for result in results:
        assert result["bytes"]["cp"] == {"send_recv cp": layers * (n - 1) * 2 * ring * (2 * e + 4)}
        assert result["bytes"]["ep"]["all_reduce dp"] == layers * 8 * (MIXTURE.num_local_experts + 1)
    # In forward a rank sends its own rows and returns the received ones, whose number depends on the router.
    sent = sum(result["bytes"]["ep"]["all_to_all ep"] for result in results)
    assert sent == n * layers * (4 * rows * e + 8 * MIXTURE.num_local_experts)
