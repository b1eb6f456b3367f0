"""The table of parameters, compared with the parameters of real models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frog.core.config import ModelConfig
from frog.core.config.model import MODULE_PARTS, ROOT, split_dim
from frog.train.model import TinyTransformer

SIZES = ModelConfig(96, 48, 100, 3, 6, 2, 32)
MODELS = {
    "tied": SIZES,
    "untied": replace(SIZES, tie_word_embeddings=False),
    "one key/value head": replace(SIZES, num_key_value_heads=1),
    "QK norm": replace(SIZES, qk_norm=True),
    "experts": replace(SIZES, num_local_experts=5),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameter_table_matches_model_names_shapes_and_order(name: str) -> None:
    state = TinyTransformer(MODELS[name]).state_dict()
    assert list(MODELS[name].shapes().items()) == [(name, tuple(tensor.shape)) for name, tensor in state.items()]


@pytest.mark.parametrize("name", MODELS)
def test_parameter_table_counts_match_model(name: str) -> None:
    model = TinyTransformer(MODELS[name])
    assert MODELS[name].num_parameters() == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_only_norms_are_vectors_and_are_not_split(name: str) -> None:
    for parameter in (*ROOT, *MODELS[name].layer_parameters()):
        is_norm = parameter.kind in ("norm", "head norm")
        assert is_norm == (len(parameter.dims) == 1)
        assert not is_norm or parameter.split_dim is None


def test_split_dim_is_found_by_a_parameters_full_name() -> None:
    assert split_dim("layers.0.self_attn.q_proj.weight") == 0
    assert split_dim("layers.11.mlp.down_proj.weight") == 1
    assert split_dim("embed_tokens.weight") == split_dim("lm_head.weight") == 0
    assert split_dim("layers.0.input_layernorm.weight") is None
    assert split_dim("norm.weight") is None
    assert split_dim("layers.0.self_attn.q_proj.lora_A.weight") is None


def test_module_parts_follow_the_forward_pass() -> None:
    ours = ["input_layernorm", "self_attn", "q_proj", "k_proj", "v_proj", "o_proj", "post_attention_layernorm", "mlp"]
    assert [part for part in MODULE_PARTS if part in ours] == ours
