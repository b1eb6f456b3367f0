"""Frog's own strategies equal one rank under `frog check --against-one`; planted mistakes do not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "checked_strategies.py"
STRATEGIES = ["zero3", "tp+sp", "pp-1f1b", "ep"]
MISTAKES = [
    ("zero3", "stale parameters", "one-forward"),
    ("tp+sp", "partial results not summed", "one-forward"),
    ("pp-1f1b", "tied gradient forgotten", "one-gradients"),
    ("ep", "rows come back in another order", "one-forward"),
    ("ddp-bucketed", "sum for average", "one-gradients"),  # clipping hides it
]


@pytest.fixture(scope="module")
def checked() -> Any:
    spec = importlib.util.spec_from_file_location("checked_strategies", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(checked: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the strategies on two ranks, and twice on one."""
    found = tmp_path_factory.mktemp("strategies")
    right = [checked.Run(name, 2) for name in (*STRATEGIES, "ddp-bucketed")]
    checked.run_all([*right, *(checked.Run(name, 2, mistake=mistake) for name, mistake, _ in MISTAKES)], found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy_equals_one_rank(checked: Any, folder: Path, strategy: str) -> None:
    assert checked.said(folder, checked.Run(strategy, 2)) == "equal"
    assert "5 steps, " in "\n".join(checked.table(folder, [checked.Run(strategy, 2)], {}))


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "mistake", "rule"), MISTAKES)
def test_mistake_in_a_strategy_is_found(checked: Any, folder: Path, strategy: str, mistake: str, rule: str) -> None:
    assert f"{rule} (likely)" in checked.said(folder, checked.Run(strategy, 2, mistake=mistake))
