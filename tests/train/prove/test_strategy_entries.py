"""Every strategy's entry provides its code, formulas, proof and page; a new strategy needs nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from harness import LIMIT_S
from two_halves import ENTRY, TwoHalves

from frog.core.config import DataConfig, ModelConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.config.strategies import AXES, DATA_STRATEGIES, DataStrategyEntry, StrategyEntry, find_strategy
from frog.core.env import world_env
from frog.plan.memory import rank_memory
from frog.plan.strategies import compare_strategies, describe
from frog.plan.traffic import step_traffic
from frog.train.comm import join_world
from frog.train.model import TinyTransformer
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.parallel.build_strategy import build_mesh, build_strategy
from frog.train.prove.matrix import DEFAULT_VARIANTS, IMPLEMENTATIONS, SMALL_MODEL, Cell, cells, proofs

PAGE = Path(__file__).parents[3] / "docs" / "train" / "strategies.md"
CONFIG = Path(__file__).parents[3] / "config"
ENTRIES = {**DATA_STRATEGIES, **AXES}
MODEL = ModelConfig(512, 64, 176, 5, 4, 2, 64)


def undocumented(entry: StrategyEntry) -> list[str]:
    """Return what the page's first table lacks: the strategy's row, or its file in the row."""
    row = re.search(rf"^\|[^|]*\| `{re.escape(entry.name)}` \|.*$", PAGE.read_text(), re.MULTILINE)
    if row is None:
        return [f"docs/train/strategies.md has no row for `{entry.name}`"]
    file = f"`{entry.modules['frog'].rpartition('.')[2]}.py`"
    return [] if file in row.group() else [f"docs/train/strategies.md: the row of `{entry.name}` does not name {file}"]


def unproved(entry: StrategyEntry) -> list[str]:
    """Return implementations that have the strategy but no proof of it."""
    key, default, name = ("name", "ddp", entry.name) if isinstance(entry, DataStrategyEntry) else (entry.name, 1, None)
    return [
        implementation
        for implementation in entry.modules
        if not any(
            (fields.get(key, default) == name) if name else key in fields for fields in proofs(implementation).values()
        )
    ]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_strategy_is_documented(name: str) -> None:
    assert undocumented(ENTRIES[name]) == []


@pytest.mark.parametrize("name", ENTRIES)
def test_every_strategy_is_proved_in_every_implementation(name: str) -> None:
    assert unproved(ENTRIES[name]) == []
    assert set(ENTRIES[name].modules) <= set(IMPLEMENTATIONS)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, in an import
@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_names_an_existing_module(name: str) -> None:
    for implementation, module in ENTRIES[name].modules.items():
        if implementation != "frog" or name in DATA_STRATEGIES:
            assert callable(import_module(module).build), module
        else:
            assert import_module(module).__doc__


@pytest.mark.parametrize("name", DATA_STRATEGIES)
def test_every_deepspeed_file_exists(name: str) -> None:
    is_there = (CONFIG / f"deepspeed_{name}.json").exists()
    assert is_there == ("deepspeed" in DATA_STRATEGIES[name].modules)


def test_strategy_names_are_unique() -> None:
    assert all(find_strategy(name) is entry and entry.name == name for name, entry in ENTRIES.items())
    assert not set(DATA_STRATEGIES) & set(AXES)


# ---- a new one -----------------------------------------------------------------------------------------------------


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Add an entry to the table, and return a run that names it. Nothing else changes."""
    monkeypatch.setitem(DATA_STRATEGIES, ENTRY.name, ENTRY)
    return RunConfig(
        model=MODEL,
        data=DataConfig(sequence_length=32),
        train=TrainConfig(global_batch_size=16, grad_accum=4),
        strategy=StrategyConfig(name=ENTRY.name),
    )


def test_strategy_without_entry_is_rejected() -> None:
    (problem,) = StrategyConfig(name=ENTRY.name).problems()
    *names, last = map(repr, DATA_STRATEGIES)
    assert problem == f"strategy.name='two-halves': must be {', '.join(names)} or {last}"


def test_run_file_accepts_new_strategy_and_checks_its_limits(added: RunConfig) -> None:
    assert added.problems() + added.world_problems(4) == []
    (problem,) = StrategyConfig(name="zorro").problems()
    assert "'two-halves'" in problem
    for field, said in (({"shard": 2}, "two-halves shards nothing"), ({"implementation": "torch"}, "frog does")):
        run = RunConfig(model=MODEL, strategy=StrategyConfig(name=ENTRY.name, **field))  # type: ignore[arg-type]
        (problem,) = run.world_problems(4)
        assert said in problem


def test_new_strategy_is_in_the_comparison(added: RunConfig) -> None:
    plain = RunConfig(model=MODEL, data=added.data, train=added.train)
    sent, same = (sum(flow.wire_bytes for flow in step_traffic(run, 4)) for run in (added, plain))
    assert sent == same
    assert {flow.op for flow in step_traffic(added, 4)} == {"reduce_scatter", "all_gather"}
    assert rank_memory(added, 4) == rank_memory(plain, 4)
    assert ENTRY.title in [row.name for row in compare_strategies(added, 4)]
    assert describe(added.strategy, 4) == [ENTRY.summary]


def test_new_strategy_is_in_every_proof_world(added: RunConfig) -> None:
    assert "two-halves" in proofs()
    found = list(cells(SMALL_MODEL, [1, 2, 4], ["frog"], DEFAULT_VARIANTS, [ENTRY.name]))
    assert [cell.world_size for cell in found if isinstance(cell, Cell)] == [1, 1, 2, 2, 4, 4]
    assert unproved(ENTRY) == []


def test_new_strategy_may_skip_reduction_in_some_steps(added: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TwoHalves, "reduces", lambda self, step: step % 3 == 0)
    run = replace(added, model=SMALL_MODEL)
    world = join_world(world_env(), torch.device("cpu"), timeout_s=1)
    strategy = build_strategy(
        run, build_mesh(run, world), TinyTransformer(run.model), partial(build_optimizer, run.optimizer)
    )
    assert [strategy.reduces(step) for step in range(1, 7)] == [False, False, True, False, False, True]


def test_missing_documentation_is_named(added: RunConfig) -> None:
    assert undocumented(ENTRY) == ["docs/train/strategies.md has no row for `two-halves`"]


def test_strategy_entries_do_not_import_torch() -> None:
    modules = "frog.core.config.strategies, frog.plan.strategies, frog.train.prove.matrix"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S)
