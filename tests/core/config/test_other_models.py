"""Sizes of models of other families, and hints for worlds that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frog.core.config import RunConfig, StrategyConfig, TrainConfig, load_model_sizes
from frog.core.config.model import ModelConfig
from frog.core.errors import ConfigError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": False,
    "vocab_size": 128256, "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}  # fmt: skip
QWEN3 = {
    **LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "intermediate_size": 12288,
    "num_hidden_layers": 36, "vocab_size": 151936, "rope_scaling": None, "sliding_window": None,
}  # fmt: skip
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new",
}  # fmt: skip
MISTRAL = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4096,
           "rope_scaling": None, "vocab_size": 32000}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "billions", "notes"),
    [
        (LLAMA, 8.03, ["positions are scaled"]),
        (QWEN3, 8.19, []),
        (MISTRAL, 7.24, ["attention has a window", "another architecture"]),
        (GPT2, 0.124, ["GPT-2 has learned positions"]),
    ],
    ids=["llama", "qwen3", "mistral", "gpt2"],
)
def test_sizes_of_published_model_are_right(
    table: dict[str, Any], billions: float, notes: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(table))
    model, said = load_model_sizes(tmp_path / "config.json")
    assert model.num_parameters() / 1e9 == pytest.approx(billions, rel=0.007)
    assert len(said) == len(notes)
    assert all(text.startswith(note) for text, note in zip(said, notes, strict=True))


@pytest.mark.parametrize("wrong", [{"n_embd": "wide"}, {"n_embd": None}, {**GPT2, "n_layer": 0}, {**LLAMA, "new": 1}])
def test_impossible_sizes_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(ConfigError):
        load_model_sizes(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("strategy", "grad_accum", "hint"),
    [
        ({"tp": 3}, 1, "--set strategy.tp=2"),
        ({"cp": 3}, 1, "--set strategy.cp=2"),
        ({"pp": 2, "schedule": "1f1b"}, 1, "--set strategy.pp=1"),
        ({"tp": 3, "pp": 3}, 1, "frog strategies --world 4 shows what is possible"),
    ],
)
def test_world_that_does_not_fit_gets_the_setting_that_fits(
    strategy: dict[str, Any], grad_accum: int, hint: str
) -> None:
    model = ModelConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    train = TrainConfig(global_batch_size=32, grad_accum=grad_accum)
    run = RunConfig(model=model, train=train, strategy=StrategyConfig(**strategy))
    with pytest.raises(ConfigError) as caught:
        run.check_world(4)
    assert caught.value.hint == hint
