"""Numbers of parameters and operations of public models, and of wrong config.json files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from frog.core.config import load_run_config
from frog.core.errors import ConfigError
from frog.plan.estimate.architectures import _LLAMAS, model_of
from frog.plan.estimate.sources import read_named_model
from frog.plan.model import PlannedModel, from_model_config

ROOT = Path(__file__).parents[3]
LLAMA_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
MIXTRAL = {
    **LLAMA_8B,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_235B = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
}
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
GPT_NEOX_20B = {
    "model_type": "gpt_neox",
    "num_hidden_layers": 44,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "vocab_size": 50432,
}
QWEN_MOE_A2_7B = {
    "model_type": "qwen2_moe",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "vocab_size": 151936,
}
DEEPSEEK_MOE_16B = {
    "model_type": "deepseek",
    "num_hidden_layers": 28,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "vocab_size": 102400,
}
QWEN2_7B = {
    **LLAMA_8B,
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}

OLMO2_7B = {
    **LLAMA_8B,
    "model_type": "olmo2",
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 100352,
}


@pytest.mark.parametrize(
    ("config", "num_parameters"),
    [
        (LLAMA_8B, 8_030_261_248),
        (MIXTRAL, 46_702_792_704),
        (QWEN2_7B, 7_615_616_512),
        (OLMO2_7B, 7_298_617_344),
        (QWEN3_235B, 235_093_634_560),
        (DEEPSEEK_V3, 671_026_404_352),
        (GPT2, 124_439_808),
        (QWEN_MOE_A2_7B, 14_315_784_192),
        (DEEPSEEK_MOE_16B, 16_375_728_128),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters_of_public_models_are_exact(config: dict[str, Any], num_parameters: int) -> None:
    assert model_of(config).num_parameters() == num_parameters


_SIZES = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "intermediate_size": 112,
    "intermediate_size_mlp": 80,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 500,
    "pad_token_id": None,
    "num_local_experts": 8,
    "num_experts": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 2,
}
"""Sizes that differ from each other, for each configuration that has them."""


@pytest.mark.parametrize("kind", [*_LLAMAS, "deepseek_v2", "deepseek_v3", "gpt2", "gpt_neox"])
def test_parameters_are_those_of_the_public_implementation(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    usual = transformers.AutoConfig.for_model(kind)
    has_bias = kind in _LLAMAS and hasattr(usual, "attention_bias")
    for sizes in (_SIZES, _SIZES | {"attention_bias": True}) if has_bias else (_SIZES,):
        config = transformers.AutoConfig.for_model(kind, **{key: sizes[key] for key in sizes if hasattr(usual, key)})
        with torch.device("meta"):
            module = transformers.AutoModelForCausalLM.from_config(config)
        num_parameters = sum(parameter.numel() for parameter in module.parameters())
        assert model_of(config.to_dict()).num_parameters() == num_parameters


GEMMA_3_27B = {
    "model_type": "gemma3",
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
    },
}
"""The published file, which omits the size of the vocabulary."""


def test_a_model_for_images_and_text_is_planned_as_its_language_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_3_27B))
    named = read_named_model(str(tmp_path))
    assert named.model.num_parameters() == 27_009_346_304  # 27,432,406,640 with the images' part
    assert (named.most_positions, named.notes) == (131_072, ("the language model alone, without images",))


@pytest.mark.parametrize(
    ("fields", "most"),
    [({}, 0), ({"n_positions": 77}, 77), ({"max_position_embeddings": -5}, 0), ({"max_position_embeddings": "x"}, 0)],
)
def test_positions_that_a_model_does_not_state_have_no_limit(
    fields: dict[str, object], most: int, tmp_path: Path
) -> None:
    text = {name: value for name, value in GEMMA_3_27B["text_config"].items() if name != "max_position_embeddings"}
    (tmp_path / "config.json").write_text(json.dumps({**GEMMA_3_27B, "text_config": {**text, **fields}}))
    assert read_named_model(str(tmp_path)).most_positions == most


@pytest.mark.parametrize(
    ("table", "windowed", "window"),
    [
        (GEMMA_3_27B, 52, 1024),
        ({**LLAMA_8B, "model_type": "mistral", "sliding_window": 4096}, 32, 4096),
        ({**LLAMA_8B, "model_type": "mistral", "sliding_window": None}, 0, 0),
        ({**QWEN2_7B, "sliding_window": 4096, "use_sliding_window": False}, 0, 0),
        ({**LLAMA_8B, "model_type": "gemma2", "sliding_window": 4096}, 16, 4096),
        ({**LLAMA_8B, "sliding_window": 64, "layer_types": ["full_attention"] * 31 + ["sliding_attention"]}, 1, 64),
    ],
    ids=["gemma3", "mistral 0.1", "mistral 0.3", "qwen2", "gemma2", "layer_types"],
)
def test_layers_with_a_sliding_window(table: dict[str, Any], windowed: int, window: int) -> None:
    model = model_of(table)
    assert (model.windowed_layers, model.window) == (windowed, window)


@pytest.mark.parametrize(("tokens", "window"), [(64, 16), (64, 64), (64, 100), (16, 1)])
def test_a_window_leaves_as_many_scores_as_its_mask(tokens: int, window: int) -> None:
    """Causal attention counts half of the keys for each token, so one half per token of the mask is not counted."""
    model = PlannedModel(1, 64, 4, 4, 16, 256, 100, window=window, windowed_layers=1)
    scores = torch.ones(tokens, tokens).tril().triu(1 - window).sum().item()
    assert 0 < scores / tokens - model.keys_in_window(tokens) / 2 <= 0.5


@pytest.mark.parametrize(
    ("config", "change", "num_parameters"),
    [
        (QWEN_MOE_A2_7B, {"decoder_sparse_step": 2}, 8_085_743_616),
        (QWEN3_235B, {"mlp_only_layers": [0, 5]}, None),
        (DEEPSEEK_MOE_16B, {"moe_layer_freq": 2}, None),
    ],
    ids=["every second layer", "two layers named", "every second after the first"],
)
def test_layers_without_experts_are_counted_as_dense(
    config: dict[str, Any], change: dict[str, Any], num_parameters: int | None
) -> None:
    """The first number is that of transformers' own module with this configuration."""
    model, whole = model_of({**config, **change}), model_of(config)
    dense = model.dense_layers - whole.dense_layers
    assert dense == {"decoder_sparse_step": 12, "mlp_only_layers": 2, "moe_layer_freq": 14}[next(iter(change))]
    mixture = whole.moe_layer_shared_parameters() + whole.experts * whole.expert_parameters()
    lost = dense * (mixture - whole.dense_layer_parameters())
    assert model.num_parameters() == whole.num_parameters() - lost
    assert num_parameters in (None, model.num_parameters())


def test_only_experts_in_groups_limit_where_a_token_goes() -> None:
    assert model_of({**DEEPSEEK_V3, "n_group": 8, "topk_group": 4}).expert_groups == 4
    assert model_of({**DEEPSEEK_V3, "n_group": 1, "topk_group": 1}).expert_groups == 0


def test_gpt_neox_20b_has_its_published_size() -> None:
    assert model_of(GPT_NEOX_20B).num_parameters() == pytest.approx(20.55e9, rel=2e-3)


def test_active_parameters_of_a_mixture_count_in_operations() -> None:
    active = model_of(MIXTRAL).product_flops_per_token() / 2
    assert active == pytest.approx(12.9e9 - 32000 * 4096, rel=0.01)


def test_parameters_of_a_run_file_agree_with_its_model() -> None:
    config = load_run_config(ROOT / "config" / "demo.toml")
    assert from_model_config(config.model).num_parameters() == config.model.num_parameters()


def test_operations_agree_with_six_per_parameter_and_token() -> None:
    model = model_of(LLAMA_8B)
    weights = model.num_parameters() - model.embedding_parameters()
    assert 3 * model.product_flops_per_token() == pytest.approx(6 * weights, rel=1e-4)


def test_causal_attention_needs_half_of_full_attention() -> None:
    model = PlannedModel(layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocab=100)
    full = model.attention_flops_per_token(128, causal=False)
    assert full == 4 * 128 * 64 * 2
    assert model.attention_flops_per_token(128) == full / 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "mamba"}, "not an architecture that the planner knows"),
        ({"hidden_size": "wide"}, "not a positive whole number"),
        ({"num_attention_heads": 0}, "not a positive whole number"),
        ({"num_local_experts": 10**30}, "at most 100,000,000"),
        ({"intermediate_size": None}, "not a positive whole number"),
    ],
)
def test_wrong_config_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        model_of({**LLAMA_8B, **change})


def test_missing_size_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    with pytest.raises(ConfigError, match="num_attention_heads is missing"):
        read_named_model(str(path))


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_named_model(str(tmp_path / "config.json"))
