"""Folders that Frog writes for `transformers`, and folders that Frog reads from `transformers`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from frog.core.config import ModelConfig
from frog.core.errors import ConfigError, FrogError, RunError, ShapeError
from frog.train.model import TinyTransformer
from frog.train.model.hf import load_hf, save_hf

SIZES = ModelConfig(300, 64, 100, 3, 4, 2, 24, rope_theta=5000.0, rms_norm_eps=1e-4)
TOKENS = torch.arange(40).view(2, 20)
TEXT = "frogs reduce gradients, and gradients reduce frogs"


@pytest.fixture(params=[(True, False), (False, False), (True, True)], ids=["tied", "untied", "QK norm"])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    tied, qk_norm = request.param
    return dataclasses.replace(SIZES, tie_word_embeddings=tied, qk_norm=qk_norm)


@pytest.fixture
def theirs(config: ModelConfig) -> LlamaForCausalLM | Qwen3ForCausalLM:
    torch.manual_seed(2)
    sizes = {name: value for name, value in vars(config).items() if name not in ("rope_theta", "qk_norm")}
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.qk_norm:
        return Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=config.head_dim, rope_parameters=rope))
    return LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope))


@pytest.fixture
def tokenizer_json(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 50, trainer)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def assert_same_logits(ours: TinyTransformer, theirs: LlamaForCausalLM) -> None:
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), theirs.eval()(TOKENS).logits, rtol=1e-5, atol=1e-5)


def built(config: ModelConfig, weights: dict[str, Tensor]) -> TinyTransformer:
    model = TinyTransformer(config)
    model.load_state_dict(weights, strict=True)
    return model


def test_transformers_loads_saved_model(config: ModelConfig, tokenizer_json: Path, tmp_path: Path) -> None:
    torch.manual_seed(4)
    ours = TinyTransformer(config)
    save_hf(ours, tmp_path / "out", tokenizer_json)
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert isinstance(theirs, Qwen3ForCausalLM if config.qk_norm else LlamaForCausalLM)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert_same_logits(ours, theirs)

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer(TEXT)["input_ids"] == Tokenizer.from_file(str(tokenizer_json)).encode(TEXT).ids
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|end|>", theirs.config.eos_token_id)


def test_folder_without_tokenizer_is_saved(config: ModelConfig, tmp_path: Path) -> None:
    save_hf(TinyTransformer(config), tmp_path / "out", None)
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


def test_saved_model_loads_back(config: ModelConfig, tmp_path: Path) -> None:
    ours = TinyTransformer(config)
    save_hf(ours, tmp_path, None)
    read_config, weights = load_hf(tmp_path)
    assert read_config == config
    assert all(torch.equal(weights[name], tensor) for name, tensor in ours.state_dict().items())


def test_model_saved_by_transformers_loads(config: ModelConfig, theirs: LlamaForCausalLM, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    read_config, weights = load_hf(tmp_path)
    assert read_config == config
    assert_same_logits(built(read_config, weights), theirs)


def test_model_in_several_files_loads(config: ModelConfig, theirs: LlamaForCausalLM, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_logits(built(*load_hf(tmp_path)), theirs)


def test_bfloat16_weights_load_as_float32(theirs: LlamaForCausalLM, tmp_path: Path) -> None:
    theirs.to(torch.bfloat16).save_pretrained(tmp_path)
    config, weights = load_hf(tmp_path)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert_same_logits(built(config, weights), AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_hf(TinyTransformer(SIZES), tmp_path / "out", None)
    return tmp_path / "out"


def rewrite_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite_weights(folder: Path, **changes: Tensor | None) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, path)


def failure(folder: Path, error: type[FrogError]) -> str:
    with pytest.raises(error) as caught:
        load_hf(folder)
    return str(caught.value)


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    assert "contains no config.json" in failure(tmp_path / "nowhere", RunError)


def test_other_model_type_is_rejected(folder: Path) -> None:
    rewrite_config(folder, model_type="gpt2")
    assert "model_type='gpt2'" in failure(folder, ConfigError)


def test_scaled_rope_is_rejected(folder: Path) -> None:
    rewrite_config(folder, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0})
    assert "rope_type='linear'" in failure(folder, ConfigError)


def test_missing_weights_are_reported(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "model.safetensors: missing" in failure(folder, RunError)


def test_missing_weight_file_is_reported(theirs: LlamaForCausalLM, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path, max_shard_size="100KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    assert f"{shard.name}: missing" in failure(tmp_path, RunError)


@pytest.mark.parametrize("text", ["{", "[]", '{"metadata": {}}', '{"weight_map": ["model.safetensors"]}'])
def test_malformed_weight_index_is_rejected(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in failure(folder, RunError)


def test_weight_index_outside_folder_is_rejected(folder: Path) -> None:
    (folder.parent / "elsewhere").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "../elsewhere"}}')
    assert "'../elsewhere', which is not a file in the same folder" in failure(folder, RunError)


def test_truncated_weights_are_reported(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    assert "model.safetensors: cannot be read" in failure(folder, RunError)


def test_missing_and_unexpected_tensors_are_named(folder: Path) -> None:
    rewrite_weights(folder, model__norm__weight=None, model__extra__bias=torch.zeros(3))
    text = failure(folder, RunError)
    assert "missing: norm.weight" in text
    assert "unexpected: extra.bias" in text


def test_tensor_with_wrong_shape_is_rejected(folder: Path) -> None:
    rewrite_weights(folder, model__norm__weight=torch.ones(63))
    assert "norm.weight has shape (63,), config.json says (64,)" in failure(folder, ShapeError)
