"""A strategy of one's own in the configuration: its entry, its combinations, and its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frog.core.config import DataConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.config.own_strategy import file_problem
from frog.core.config.run_config import CommConfig
from frog.core.config.strategies import DATA_STRATEGIES
from frog.core.errors import ConfigError
from frog.plan.strategies import describe
from frog.train.prove.matrix import SMALL_MODEL

OWN = StrategyConfig(file="some/mine.py")
RUN = RunConfig(SMALL_MODEL, data=DataConfig(sequence_length=16), strategy=OWN)


def test_own_strategy_is_named_after_its_file_and_has_no_formulas() -> None:
    assert (OWN.entry.name, OWN.entry.has_formulas) == ("mine", False)
    assert all(entry.has_formulas for entry in DATA_STRATEGIES.values())
    assert describe(OWN, 2) == [
        "A strategy of your own, from some/mine.py; no formula knows its memory and its traffic."
    ]
    assert RUN.problems() == []
    assert RUN.world_problems(4) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tp": 2}, "strategy.tp=2"),
        ({"pp": 2}, "strategy.pp=2"),
        ({"cp": 2}, "strategy.cp=2"),
        ({"ep": 2}, "strategy.ep=2"),
        ({"shard": 2}, "strategy.shard=2"),
        ({"name": "zero1"}, "strategy.name='zero1'"),
        ({"implementation": "torch"}, "strategy.implementation='torch'"),
        ({"compression": "int8"}, "strategy.compression='int8'"),
    ],
)
def test_combination_with_another_strategy_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    (problem,) = replace(RUN, strategy=replace(OWN, **settings)).world_problems(4)
    assert problem.startswith(f"strategy.file='some/mine.py' with {words}: the file is the whole strategy")


def test_compiled_and_shrinking_runs_are_refused() -> None:
    run = replace(RUN, train=TrainConfig(compile=True), comm=CommConfig(on_loss="shrink"))
    compiled, shrinking, _ = run.world_problems(2)
    assert compiled.startswith("train.compile=true with strategy.file='some/mine.py': its hooks")
    assert shrinking.startswith("comm.on_loss='shrink' with strategy.file='some/mine.py'")


def test_missing_file_is_reported_where_the_run_starts_only() -> None:
    with pytest.raises(ConfigError, match=r"strategy.file='some/mine.py': no such file; a run's folder keeps a copy"):
        RUN.check_world(2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import torch\ndef build(model, group)\n", "mine.py:2: expected ':': def build(model, group)"),
        ("x = '\0'", "source code string cannot contain null bytes"),
        ("# coding: latin-9999\n", "mine.py"),
        ("(" * 10_000, "mine.py"),
    ],
    ids=["syntax", "null byte", "encoding", "nesting"],
)
def test_file_that_is_not_python_is_reported_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    problem = file_problem(str(file))
    assert problem is not None
    assert words in problem


def test_folder_and_empty_name_are_not_files(tmp_path: Path) -> None:
    for name in ("", str(tmp_path)):
        with pytest.raises(ConfigError, match="cannot be read"):
            file_problem(name)


def test_correct_file_has_no_problem(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def build(model, group): ...\n")
    assert file_problem(str(tmp_path / "mine.py")) is None
    assert file_problem(None) is None
