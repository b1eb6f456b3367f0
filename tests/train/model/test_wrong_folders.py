"""Adapters and Hugging Face folders with wrong files: each file is read, or rejected by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mutations import held_to_its_schema

from frog.core.config import ModelConfig
from frog.core.config.finetune import LoraConfig
from frog.core.errors import RunError
from frog.train.model import TinyTransformer
from frog.train.model.adapter import CONFIG_FILE, WEIGHTS_FILE, load_adapter, read_config, save_adapter
from frog.train.model.hf import load_hf, save_hf
from frog.train.model.lora import add_lora

SIZES = ModelConfig(11, 8, 16, 1, 2, 2, 24)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    model = TinyTransformer(SIZES)
    lora = LoraConfig(2, 4, ("q_proj", "v_proj"))
    add_lora(model, lora)
    save_adapter(model, lora, tmp_path / "adapter", base="runs/base", labels=["a", "b"])
    return tmp_path / "adapter"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_hf(TinyTransformer(SIZES), tmp_path / "saved", None)
    return tmp_path / "saved"


@pytest.mark.slow
def test_adapter_configs_with_wrong_values_are_rejected(adapter: Path) -> None:
    held_to_its_schema(adapter / CONFIG_FILE, lambda: read_config(adapter))
    held_to_its_schema(adapter / CONFIG_FILE, lambda: load_adapter(TinyTransformer(SIZES), adapter), names=str(adapter))


def test_hugging_face_configs_with_wrong_values_are_rejected(saved: Path) -> None:
    held_to_its_schema(saved / "config.json", lambda: load_hf(saved), names=str(saved))


def test_weight_indices_with_wrong_values_are_rejected(saved: Path) -> None:
    index = saved / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": "model.safetensors"}}))
    held_to_its_schema(index, lambda: load_hf(saved), names=str(saved))
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../model.safetensors"}}))
    with pytest.raises(RunError, match="which is not a file in the same folder"):
        load_hf(saved)


def test_tokenizer_with_wrong_end_token_is_handled(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"added_tokens": [{"id": 0, "content": "<|endoftext|>"}]}))
    model = TinyTransformer(SIZES)
    held_to_its_schema(path, lambda: save_hf(model, tmp_path / "out", path), names=str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\x08\0\0\0\0\0\0\0{}      "])
def test_malformed_weights_are_rejected(adapter: Path, saved: Path, content: bytes) -> None:
    (adapter / WEIGHTS_FILE).write_bytes(content)
    (saved / "model.safetensors").write_bytes(content)
    with pytest.raises(Exception, match=str(adapter)) as caught:
        load_adapter(TinyTransformer(SIZES), adapter)
    assert type(caught.value).__module__ == "frog.core.errors"
    with pytest.raises(RunError, match=str(saved)):
        load_hf(saved)


def test_named_pipes_are_rejected_without_waiting(adapter: Path, saved: Path) -> None:
    for path, read in ((adapter / WEIGHTS_FILE, lambda: load_adapter(TinyTransformer(SIZES), adapter)),
                       (saved / "model.safetensors", lambda: load_hf(saved))):  # fmt: skip
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(RunError, match="missing"):
            read()


def test_oversized_weights_are_rejected_before_reading(saved: Path) -> None:
    with (saved / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        RunError, match=r"its weights have 1099511627776 bytes, the model of its config.json \d+ parameters"
    ):
        load_hf(saved)
