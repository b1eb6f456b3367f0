"""`frog strategies`: the comparison works for every model and world."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import LIMIT_S

from frog.cli import main
from frog.core.config import ModelConfig, RunConfig, StrategyConfig, TrainConfig
from frog.plan.strategies import Row, compare_strategies, describe, expected_bubble

MODEL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}


def compare(world: int, model: dict[str, int] = MODEL, batch: int = 32) -> dict[str, Row]:
    config = RunConfig(model=ModelConfig(**model), train=TrainConfig(global_batch_size=batch))
    return {row.name: row for row in compare_strategies(config, world)}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8, 12, 64])
def test_every_row_has_numbers_or_reasons(world: int) -> None:
    for row in compare(world, batch=world * 2).values():
        assert (row.memory is None) == bool(row.problems)
        assert row.use
        if row.memory is not None:
            assert row.memory.total > 0
            assert (row.sent_bytes > 0) == (world > 1)


def test_higher_zero_stages_take_less_memory() -> None:
    rows = compare(8)
    totals = [rows[name].memory for name in ("ddp", "zero1", "zero2", "zero3")]
    states = [memory.parameters + memory.gradients + memory.optimizer for memory in totals if memory]
    assert states == sorted(states, reverse=True)
    assert len(set(states)) == 4
    assert rows["ddp"].sent_bytes == rows["zero1"].sent_bytes
    assert 1 < rows["zero3"].sent_bytes / rows["ddp"].sent_bytes < 1.5


def test_pipeline_row_gets_micro_batches_and_bubble() -> None:
    rows = compare(4)
    assert rows["pipeline, 1f1b"].num_micro == 16
    assert rows["pipeline, 1f1b"].bubble == rows["pipeline, gpipe"].bubble == pytest.approx(3 / 19)
    assert rows["pipeline, interleaved"].bubble == pytest.approx(3 / 35)
    assert rows["pipeline, zero_bubble"].bubble == pytest.approx(3 / 51)
    assert rows["ddp"].bubble is None


def test_impossible_rows_state_reasons() -> None:
    rows = compare(8)
    assert rows["tensor"].problems == [
        "num_key_value_heads=4 is not a multiple of strategy.tp=8: each rank takes whole key/value heads"
    ]
    assert "num_hidden_layers=8 is less than 16 stages" in rows["pipeline, interleaved"].problems[0]
    assert compare(8, batch=1)["ddp"].problems


def test_mixture_of_experts_adds_its_row() -> None:
    assert "expert" not in compare(4)
    rows = compare(4, {**MODEL, "num_local_experts": 4})
    memory, alone = rows["expert"].memory, rows["ddp"].memory
    assert memory is not None
    assert alone is not None
    assert memory.parameters < alone.parameters / 2


def test_bubble_and_description_of_a_run() -> None:
    config = RunConfig(model=ModelConfig(**MODEL), train=TrainConfig(grad_accum=4), strategy=StrategyConfig(pp=2))
    assert expected_bubble(config) == pytest.approx(1 / 5)
    assert len(describe(config.strategy, 2)) == 1
    assert len(describe(config.strategy, 4)) == 2
    assert "the rows are replicas" in describe(StrategyConfig(name="zero3", shard=2), 4)[1]


def run_command(folder: Path, *words: str) -> int:
    (folder / "config.json").write_text(json.dumps(MODEL))
    return main(["strategies", "--model", str(folder / "config.json"), *words])


def test_strategies_command_prints_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(tmp_path, "--world", "8") == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "8 ranks, a step of 32 x 64 tokens" in lines[0]
    (ddp,) = [line for line in lines if line.startswith("ddp  ")]
    assert ddp.split()[1:3] == ["dp", "8"]
    (tensor,) = [line for line in lines if line.startswith("tensor  ")]
    assert "not possible" in tensor
    assert "  tensor: num_key_value_heads=4 is not a multiple of strategy.tp=8" in out
    assert "  zero1: Adam's moments no longer fit" in out
    assert max(map(len, lines[:25])) <= 160


def test_strategies_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(tmp_path, "--world", "2", "--json", "--global-batch", "6", "--sequence-length", "32") == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (printed["world_size"], printed["global_batch_size"], printed["sequence_length"]) == (2, 6, 32)
    first = printed["strategies"][0]
    assert first["name"] == "ddp"
    assert first["sent_bytes"] == 4 * printed["num_parameters"]
    assert first["memory"]["optimizer"] == 8 * printed["num_parameters"]


def test_run_file_sets_the_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "run.toml").write_text("[data]\nsequence_length = 16\n[train]\nglobal_batch_size = 12\n")
    assert main(["strategies", "--model", str(tmp_path / "run.toml"), "--world", "2"]) == 0
    assert "a step of 12 x 16 tokens" in capsys.readouterr().out
    assert main(["strategies", "--model", str(tmp_path / "run.toml"), "--world", "2", "--global-batch", "8"]) == 0
    assert "a step of 8 x 16 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sequence-length", "65"], "max_position_embeddings=64"),
        (["--global-batch", "0"], "train.global_batch_size=0"),
    ],
)
def test_strategies_command_reports_mistakes_without_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert run_command(tmp_path, *words) == 2
    assert complaint in capsys.readouterr().err


def test_strategies_command_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    code = (
        "import sys\nfrom frog.cli import main\n"
        "assert main(['strategies', '--model', 'config.json', '--world', '16']) == 0\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr.decode()
