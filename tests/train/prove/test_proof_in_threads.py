"""Every strategy from scratch equals one process, in worlds whose ranks are threads: quick proofs of the numbers.

test_proof.py proves the same with processes and torch's own collectives.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mutants import MUTANTS
from threads_world import on_ranks

from frog.core.config.optimizers import OPTIMIZERS
from frog.train.model import TinyTransformer
from frog.train.prove import prove_rank
from frog.train.prove.matrix import ALL_VARIANTS, DEFAULT_VARIANTS, SMALL_MODEL, Cell, Variant, cells, proofs
from frog.train.prove.prove_rank import TOLERANCE, Case, Trace, compare, one_process, spread

OTHER_OPTIMIZERS = [variant for variant in ALL_VARIANTS if variant.optimizer != "adamw"]
WANTED = [
    *cells(SMALL_MODEL, [2], ["frog"], DEFAULT_VARIANTS[1:]),
    *cells(SMALL_MODEL, [4], ["frog"], DEFAULT_VARIANTS[:1]),
    *cells(SMALL_MODEL, [4], ["frog"], OTHER_OPTIMIZERS, ["dp x tp", "dp x pp", "hybrid zero1"]),
    *cells(SMALL_MODEL, [2], ["frog"], [variant for variant in ALL_VARIANTS if variant.qk_norm], ["tp"]),
]
CELLS = [cell for cell in WANTED if isinstance(cell, Cell)]
ORACLES: dict[str, Trace] = {}
_ONE_SEED = threading.Lock()


def proved(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what `frog prove` would of a cell."""
    case = Case.of(cell.fields(0), Path("cases.json"))
    make_model = prove_rank.make_model

    def make_alone(case: Case, seed: int) -> TinyTransformer:
        with _ONE_SEED:  # all threads share torch's generator
            return make_model(case, seed)

    monkeypatch.setattr(prove_rank, "make_model", make_alone)

    key = prove_rank._oracle_key(case, cell.world_size)
    if key not in ORACLES:
        ORACLES[key] = one_process(case, case.config.strategy.dp_size(cell.world_size))
    return compare(
        on_ranks(cell.world_size, partial(spread, case))[0], ORACLES[key], TOLERANCE[case.config.train.precision]
    )


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.world_size} {cell.strategy}, {cell.variant.name}")
def test_strategy_equals_one_process_in_threads(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    result = proved(cell, monkeypatch)
    assert result["equal"], result["first"]


def test_every_strategy_and_optimizer_is_proved_in_threads() -> None:
    assert {cell.strategy for cell in CELLS} == set(proofs()) - {"dp x tp x pp"}, "it needs a world of 8"
    assert {cell.variant.optimizer for cell in CELLS} == set(OPTIMIZERS)


@pytest.mark.parametrize("name", ["ddp-overlapped", "zero1", "zero2", "zero3", "tp", "pp-1f1b", "cp", "ep", "diloco"])
def test_planted_mistake_is_detected_in_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = [mutant for mutant in MUTANTS if mutant.strategy == name][-1]
    variant = Variant("accumulated", accumulate=mutant.accumulate)
    (cell,) = cells(SMALL_MODEL, [mutant.world_size], ["frog"], [variant], [name])
    assert isinstance(cell, Cell)
    with mutant.plant():
        result = proved(cell, monkeypatch)
    assert not result["equal"], mutant.name
