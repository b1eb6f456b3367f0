"""What is wrong with 3,600 combinations of settings and worlds: kept_problems.json has how many problems, and a sum.

Other tests name single rules. Here no rule, number or hint may change unnoticed. After a change that is meant:
FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/core/config/test_kept_problems.py, and read the difference.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frog.core.config.model import ModelConfig
from frog.core.config.run_config import RunConfig
from frog.core.errors import ConfigError

KEPT = Path(__file__).with_name("kept_problems.json")
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ
MODEL = ModelConfig(
    vocab_size=96,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=6,
    num_attention_heads=12,
    num_key_value_heads=6,
    max_position_embeddings=64,
)
RUN = RunConfig(MODEL)
WORLDS = (1, 2, 3, 4, 6, 8, 12, 65)
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "nothing": {},
    "tp": {"strategy": {"tp": 2}},
    "tp 4": {"strategy": {"tp": 4, "sequence_parallel": False}},
    "tp 5": {"strategy": {"tp": 5}},
    "cp": {"strategy": {"cp": 2}, "data": {"sequence_length": 62}},
    "pp": {"strategy": {"pp": 2}, "train": {"grad_accum": 2}},
    "pp, few": {"strategy": {"pp": 4}, "train": {"grad_accum": 2}},
    "pp 8": {"strategy": {"pp": 8}, "train": {"grad_accum": 8}},
    "interleaved": {"strategy": {"pp": 3, "schedule": "interleaved"}, "train": {"grad_accum": 4}},
    "interleaved, many": {"strategy": {"pp": 2, "schedule": "interleaved", "virtual_stages": 4}},
    "zero bubble": {"strategy": {"pp": 2, "schedule": "zero_bubble"}, "train": {"grad_accum": 6}},
    "zero bubble, odd": {"strategy": {"pp": 2, "schedule": "zero_bubble"}, "train": {"grad_accum": 3}},
    "all axes": {"strategy": {"pp": 2, "tp": 2, "cp": 2}, "train": {"grad_accum": 2}},
    "shard": {"strategy": {"shard": 2}},
    "shard 3, tp": {"strategy": {"shard": 3, "tp": 2}},
    "int8": {"strategy": {"compression": "int8"}},
    "int8, tp": {"strategy": {"compression": "int8", "tp": 2, "reduction": "naive"}},
    "powersgd": {"strategy": {"compression": "powersgd", "tp": 2}},
    "ep": {"strategy": {"ep": 2}},
    "experts": {"model": {"num_local_experts": 4}, "strategy": {"ep": 2}},
    "experts, tp, pp": {"model": {"num_local_experts": 6}, "strategy": {"ep": 4, "tp": 2, "pp": 2}},
    "compile": {"train": {"compile": True}, "strategy": {"tp": 2}},
    "compile alone": {"train": {"compile": True}},
    "shrink": {"comm": {"on_loss": "shrink"}},
    "shrink, everything": {
        "comm": {"on_loss": "shrink", "backend": "gloo"},
        "strategy": {"shard": 2, "tp": 2, "cp": 1, "compression": "int8"},
        "train": {"compile": True},
    },
    "fp16": {"train": {"precision": "fp16"}, "strategy": {"compression": "int8"}},
    "sgd": {"optimizer": {"name": "sgd"}},
    "muon": {"optimizer": {"name": "muon"}, "strategy": {"tp": 2}},
    "own": {"strategy": {"file": "mine.py", "shard": 2, "ep": 2}, "train": {"compile": True}},
    "batch": {"train": {"global_batch_size": 15, "grad_accum": 3}},
}
NAMES = ("ddp", "zero1", "zero2", "zero3", "diloco")


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if REWRITE:
        lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(known.items())]
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def changed(run: RunConfig, settings: dict[str, dict[str, Any]], **strategy: Any) -> RunConfig:
    for section, fields in settings.items():
        run = replace(run, **{section: replace(getattr(run, section), **fields)})
    return replace(run, strategy=replace(run.strategy, **strategy))


def said(run: RunConfig, world_size: int) -> list[str]:
    """Return what is wrong with a run in a world; for two worlds also the hint, which tries many changes."""
    of_world = run.world_problems(world_size)
    hint = [run._world_hint(of_world, world_size)] if of_world and world_size in (3, 8) else []
    return [*run.problems(), *of_world, *hint]


def short(lines: list[str]) -> str:
    """Return how many lines there are, and a sum of their text."""
    return f"{len(lines)}:{zlib.crc32(chr(10).join(lines).encode()):x}" if lines else "0"


@pytest.mark.parametrize("implementation", ["frog", "torch", "deepspeed"])
@pytest.mark.parametrize("name", NAMES)
def test_no_problem_of_a_combination_changes_unnoticed(
    name: str, implementation: str, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frog.core.config.strategy.version", lambda package: "2.10.0")
    for what, settings in SETTINGS.items():
        run = changed(RUN, settings, name=name, implementation=implementation)
        found = [said(run, world_size) for world_size in WORLDS]
        place = f"{name} by {implementation}, {what}"
        if REWRITE:
            kept[place] = " ".join(map(short, found))
        assert " ".join(map(short, found)) == kept[place], found


def test_no_word_of_some_problems_changes_unnoticed(kept: dict[str, Any]) -> None:
    """Those of Frog's ddp and zero3 on eight ranks, to be read."""
    for name in ("ddp", "zero3"):
        for what, settings in SETTINGS.items():
            found = said(changed(RUN, settings, name=name), 8)
            place = f"words: {name}, {what}"
            if REWRITE:
                kept[place] = found
            assert found == kept[place]


def test_no_number_of_a_batch_and_its_memory_changes_unnoticed(kept: dict[str, Any]) -> None:
    found = {}
    for what, settings in SETTINGS.items():
        run = changed(RUN, settings)
        sizes = [world_size for world_size in WORLDS if not run.world_problems(world_size)]
        found[what] = [
            [size, run.least_bytes(size), run.explain_batch(size), run.micro_batch_size(run.strategy.dp_size(size))]
            for size in sizes
        ]
        found[what].append([step for step in range(1, 13) if run.meets(step)])
    if REWRITE:
        kept["batches"] = found
    assert found == kept["batches"]


def test_error_of_a_world_lists_every_problem_and_one_hint() -> None:
    run = changed(RUN, {"strategy": {"tp": 5}})
    with pytest.raises(ConfigError) as caught:
        run.check_world(5, ["another problem"])
    *others, last = str(caught.value).splitlines()
    assert len(others) == len(run.world_problems(5)) + 1
    assert "  - another problem" in others
    assert last.startswith("  try: ")
    with pytest.raises(ConfigError, match="only this one") as caught:
        RUN.check_world(1, ["only this one"], hint="do something")
    assert caught.value.hint == "do something"
