"""The matrix: every strategy, in worlds of 1, 2 and 4, equals one process; every planted mistake is detected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Harness
from mutants import MISCONCEPTIONS, MUTANTS, Mutant

from frog.core.config.strategies import AXES, DATA_STRATEGIES
from frog.learn.grader.exercise import find_exercises
from frog.train.prove.matrix import ALL_VARIANTS, DEFAULT_VARIANTS, SMALL_MODEL, Cell, cells, proofs
from frog.train.prove.prove_commands import prove
from frog.train.prove.prove_files import ProofResult

WORKER = Path(__file__).parent / "mutant_worker.py"
OTHER_OPTIMIZERS = [variant for variant in ALL_VARIANTS if variant.optimizer != "adamw"]
QK_NORM = [variant for variant in ALL_VARIANTS if variant.qk_norm]
WANTED = [
    *cells(SMALL_MODEL, [2], ["frog"], ALL_VARIANTS),
    *cells(SMALL_MODEL, [1, 4], ["frog"], DEFAULT_VARIANTS),
    *cells(SMALL_MODEL, [2], ["torch"], QK_NORM, ["tp"]),
    *cells(SMALL_MODEL, [4], ["frog"], OTHER_OPTIMIZERS, ["dp x tp", "dp x pp", "hybrid zero1"]),
]
CELLS = [cell for cell in WANTED if isinstance(cell, Cell)]


def is_fast(cell: Cell) -> bool:
    """Return True for the proofs in `make test`: each strategy in a world of two.

    test_proof_in_threads.py proves products, and the other optimizers over parameters that a strategy splits.
    """
    return cell.world_size == 2 and (
        cell.variant.name == "plain" or (cell.variant in QK_NORM and cell.strategy == "tp")
    )


@pytest.fixture(scope="module")
def proved(request: pytest.FixtureRequest) -> dict[int, ProofResult]:
    """Run the selected cells: `make test` leaves most to `make test-all`."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {id(found["cell"]) for found in params if "cell" in found}
    return {id(cell): result for cell, result in prove([cell for cell in CELLS if id(cell) in wanted])}


@pytest.mark.timeout(2700)
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell,
            id=f"{cell.world_size} {cell.strategy}, {cell.variant.name}, {cell.implementation}",
            marks=[] if is_fast(cell) else [pytest.mark.slow],
        )
        for cell in CELLS
    ],
)
def test_strategy_equals_one_process(proved: dict[int, ProofResult], cell: Cell) -> None:
    result = proved[id(cell)]
    assert result.equal, result.first


def test_every_strategy_is_in_the_matrix() -> None:
    missing = set(proofs()) - {cell.strategy for cell in CELLS}
    assert missing == {"dp x tp x pp"}, "needs a world of 8"


def test_every_strategy_that_two_ranks_can_have_has_a_fast_proof() -> None:
    fast = {cell.strategy for cell in CELLS if is_fast(cell)}
    assert fast == {cell.strategy for cell in CELLS if cell.world_size == 2}
    assert fast >= {name for entry in (DATA_STRATEGIES | AXES).values() for name in entry.proofs}


@pytest.fixture(scope="module")
def seen(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for world_size in (2, 4):
        path = tmp_path_factory.mktemp("mutants") / "found.json"
        command = ("frog", "run", "--nproc", str(world_size), "--threads", "1", "--", str(WORKER), str(path))
        harness.run(*command, limit_s=900)
        found |= json.loads(path.read_text())
    return found


@pytest.mark.slow
@pytest.mark.timeout(2100)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.strategy}: {mutant.name}")
def test_every_planted_mistake_is_detected(seen: dict[str, dict[str, Any]], mutant: Mutant) -> None:
    assert not seen[f"{mutant.strategy}: {mutant.name}, {mutant.world_size}"]["equal"]


def test_every_planted_mistake_is_a_misconception_of_an_exercise() -> None:
    assert MISCONCEPTIONS.keys() == {mutant.name for mutant in MUTANTS}
    known = {f"{exercise.number} {one.id}" for exercise in find_exercises() for one in exercise.manifest.misconceptions}
    assert set(MISCONCEPTIONS.values()) <= known


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_new_strategy_is_proved_by_its_entry_alone(seen: dict[str, dict[str, Any]], world_size: int) -> None:
    result = seen[f"two-halves: nothing planted, {world_size}"]
    assert result["equal"], result["first"]


@pytest.mark.slow
def test_product_of_three_strategies_is_proved_on_8_ranks() -> None:
    (cell,) = (
        cell
        for cell in cells(SMALL_MODEL, [8], ["frog"], ALL_VARIANTS[1:2], ["dp x tp x pp"])
        if isinstance(cell, Cell)
    )
    ((_, result),) = prove([cell])
    assert result.equal, result.first
