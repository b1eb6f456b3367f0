"""LoRA compared with `peft` over the same base weights: outputs, gradients, files, merging."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from test_classifier import assert_close
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from frog.core.config import ModelConfig
from frog.core.config.finetune import LoraConfig, parse_lora
from frog.core.errors import ConfigError, FrogError, RunError, ShapeError
from frog.train.model import TinyTransformer
from frog.train.model.adapter import CONFIG_FILE, WEIGHTS_FILE, load_adapter, save_adapter
from frog.train.model.hf import load_hf, save_hf
from frog.train.model.lora import (
    LoraLinear,
    add_lora,
    lora_layers,
    merge_lora,
    target_names,
    trained_parameters,
    unload_lora,
    unmerge_lora,
)

# peft asks transformers for a property whose name is about to change.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

SIZES = ModelConfig(97, 48, 80, 2, 6, 2, 24, rope_theta=5000.0, tie_word_embeddings=False)
TIED = ModelConfig(97, 48, 80, 2, 4, 4, 24)
TOKENS = torch.randint(0, 97, (3, 20), generator=torch.Generator().manual_seed(4))
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORAS = {
    "query and value": LoraConfig(4, 8, ("q_proj", "v_proj")),
    "all, alpha below rank": LoraConfig(8, 3, ("all",)),
    "rank 1, one module": LoraConfig(1, 1, ("layers.1.mlp.down_proj",)),
}


@pytest.fixture(params=[SIZES, TIED], ids=["untied", "tied"])
def base(request: pytest.FixtureRequest) -> TinyTransformer:
    torch.manual_seed(3)
    model = TinyTransformer(request.param)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


@pytest.fixture(params=LORAS.values(), ids=LORAS.keys())
def lora(request: pytest.FixtureRequest) -> LoraConfig:
    return request.param


def adapted(base: TinyTransformer, lora: LoraConfig) -> TinyTransformer:
    """Return the base with adapters that look trained: neither of their matrices is zero."""
    model = copy.deepcopy(base)
    torch.manual_seed(8)
    add_lora(model, lora)
    with torch.no_grad():
        for parameter in trained_parameters(model).values():
            parameter.normal_(0.0, 0.2)
    return model


def in_transformers(base: TinyTransformer, folder: Path) -> LlamaForCausalLM:
    save_hf(base, folder, None)
    return LlamaForCausalLM.from_pretrained(folder)


def save(model: TinyTransformer, lora: LoraConfig, folder: Path) -> Path:
    save_adapter(model, lora, folder, base="runs/base", labels=[])
    return folder


def test_lora_outputs_and_gradients_match_peft(base: TinyTransformer, lora: LoraConfig, tmp_path: Path) -> None:
    ours = adapted(base, lora)
    save(ours, lora, tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(
        in_transformers(base, tmp_path / "base"), tmp_path / "adapter", is_trainable=True
    ).eval()
    logits = theirs(TOKENS).logits
    assert_close(ours(TOKENS), logits)
    with torch.no_grad():
        assert not torch.allclose(base(TOKENS), logits, atol=1e-2), "the adapter does nothing"

    labels = TOKENS.roll(-1, dims=1)
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    ours(TOKENS, labels).backward()
    found = {name.replace(".default", ""): p for name, p in theirs.named_parameters() if p.requires_grad}
    assert len(found) == len(trained_parameters(ours)) == 2 * len(list(lora_layers(ours)))
    for name, parameter in trained_parameters(ours).items():
        assert_close(parameter.grad, found[f"base_model.model.model.{name}"].grad, name)
    assert all(p.grad is None for p in ours.parameters() if not p.requires_grad)


def test_adapter_saved_by_peft_loads(base: TinyTransformer, lora: LoraConfig, tmp_path: Path) -> None:
    targets = list(ALL) if lora.targets == ("all",) else list(lora.targets)
    peft_config = PeftConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    theirs = get_peft_model(in_transformers(base, tmp_path / "base"), peft_config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.2)
    theirs.save_pretrained(tmp_path / "adapter")
    ours = copy.deepcopy(base)
    read = load_adapter(ours, tmp_path / "adapter")
    assert (read.rank, read.alpha) == (lora.rank, lora.alpha)
    with torch.no_grad():
        assert_close(ours(TOKENS), theirs.eval()(TOKENS).logits)


def test_saved_adapter_contains_only_trained_parameters(base: TinyTransformer, tmp_path: Path) -> None:
    lora = LORAS["query and value"]
    ours = adapted(base, lora)
    folder = save(ours, lora, tmp_path / "adapter")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["adapter"]
    assert sorted(entry.name for entry in folder.iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]
    assert sum(t.numel() for t in load_file(folder / WEIGHTS_FILE).values()) == sum(
        p.numel() for p in trained_parameters(ours).values()
    )
    again = copy.deepcopy(base)
    load_adapter(again, folder)
    with torch.no_grad():
        assert torch.equal(again(TOKENS), ours(TOKENS))


def test_failed_save_leaves_no_files(base: TinyTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = LORAS["query and value"]

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("frog.train.model.adapter.write_json", full)
    with pytest.raises(OSError, match="no space"):
        save(adapted(base, lora), lora, tmp_path / "adapter")
    assert list(tmp_path.iterdir()) == []


def test_new_adapter_does_not_change_outputs(base: TinyTransformer, lora: LoraConfig) -> None:
    model = copy.deepcopy(base)
    add_lora(model, lora)
    with torch.no_grad():
        assert torch.equal(model(TOKENS), base(TOKENS))
    assert all(layer.lora_A.weight.abs().sum() > 0 for _, layer in lora_layers(model))


def test_only_adapters_are_trained(base: TinyTransformer, lora: LoraConfig) -> None:
    model = adapted(base, lora)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    model(TOKENS, TOKENS.roll(-1, dims=1)).backward()
    optimizer.step()
    frozen = dict(model.named_parameters())
    assert all(torch.equal(frozen[name], parameter) for name, parameter in base.named_parameters())


def test_merge_and_unmerge_restore_weights(base: TinyTransformer, lora: LoraConfig) -> None:
    model = adapted(base, lora)
    with torch.no_grad():
        expected = model(TOKENS)
        merge_lora(model)
        merge_lora(model)  # a second time does nothing
        assert_close(model(TOKENS), expected)
        assert any(not torch.equal(dict(model.named_parameters())[n], p) for n, p in base.named_parameters())
        unmerge_lora(model)
        unmerge_lora(model)
        assert_close(model(TOKENS), expected)
    parameters = dict(model.named_parameters())
    for name, weight in base.named_parameters():
        torch.testing.assert_close(parameters[name], weight, rtol=1e-5, atol=1e-6)


def test_merged_model_loads_as_plain_model(base: TinyTransformer, lora: LoraConfig, tmp_path: Path) -> None:
    model = adapted(base, lora)
    theirs = PeftModel.from_pretrained(
        in_transformers(base, tmp_path / "base"), save(model, lora, tmp_path / "adapter")
    ).merge_and_unload()
    with torch.no_grad():
        expected = model(TOKENS)
        unload_lora(model)
        assert not list(lora_layers(model))
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in base.named_parameters()]
        assert_close(model(TOKENS), expected)
        merged = dict(theirs.named_parameters())
        for name, parameter in model.named_parameters():
            assert_close(parameter, merged[name if name == "lm_head.weight" else f"model.{name}"], name)
        assert_close(in_transformers(model, tmp_path / "merged")(TOKENS).logits, expected)
    _, weights = load_hf(tmp_path / "merged")
    assert all(torch.equal(weights[name], parameter) for name, parameter in model.named_parameters())


def test_lora_gradients_in_float64_match_merged_matrix() -> None:
    """The gradients of A and B follow from the matrix's by the chain rule: B^T dW and dW A^T, times the scaling."""
    torch.manual_seed(0)
    model = adapted(TinyTransformer(TIED), LoraConfig(4, 8, ("up_proj",))).double()
    labels = TOKENS.roll(-1, dims=1)
    model(TOKENS, labels).backward()
    merged = copy.deepcopy(model)
    unload_lora(merged)
    merged.requires_grad_(True)
    merged.zero_grad()
    merged(TOKENS, labels).backward()
    for name, layer in lora_layers(model):
        whole = merged.get_parameter(f"{name}.weight").grad
        expected_A = layer.lora_B.weight.T @ whole * layer.scaling
        torch.testing.assert_close(layer.lora_A.weight.grad, expected_A, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(layer.lora_B.weight.grad, whole @ layer.lora_A.weight.T * layer.scaling)


@pytest.mark.parametrize("mutant", ["no scaling", "A and B swapped", "base forgotten"])
def test_oracle_detects_planted_lora_mistakes(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(layer: LoraLinear, x: Tensor) -> Tensor:
        y = F.linear(x, layer.weight)
        if mutant == "no scaling":
            return y + layer.lora_B(layer.lora_A(x))
        if mutant == "base forgotten":
            return layer.lora_B(layer.lora_A(x)) * layer.scaling
        return y + (x @ layer.lora_B.weight @ layer.lora_A.weight) * layer.scaling

    monkeypatch.setattr(LoraLinear, "forward", forward)
    with pytest.raises(AssertionError):
        test_lora_outputs_and_gradients_match_peft(
            TinyTransformer(TIED), LoraConfig(4, 8, ("q_proj", "v_proj")), tmp_path
        )


def test_targets_match_name_suffixes() -> None:
    model = TinyTransformer(TIED)
    assert target_names(model, LoraConfig(4, 8, ("v_proj",))) == [f"layers.{n}.self_attn.v_proj" for n in (0, 1)]
    assert target_names(model, LoraConfig(4, 8, ("layers.1.mlp.up_proj",))) == ["layers.1.mlp.up_proj"]
    assert len(target_names(model, LoraConfig())) == 14


def test_unknown_targets_are_rejected() -> None:
    with pytest.raises(ConfigError) as caught:
        add_lora(TinyTransformer(TIED), LoraConfig(4, 8, ("query", "lm_head", "v_proj")))
    text = str(caught.value)
    assert "targets=query: no projection" in text
    assert "targets=lm_head: no projection" in text
    assert "targets=v_proj" not in text
    assert all(name in text for name in ALL)


def test_invalid_rank_is_rejected() -> None:
    with pytest.raises(ConfigError, match="rank=49 is above the maximum of 48 for q_proj"):
        add_lora(TinyTransformer(TIED), LoraConfig(49, 8, ("q_proj",)))
    with pytest.raises(ConfigError, match="rank=0: must be at least 1"):
        add_lora(TinyTransformer(TIED), LoraConfig(0, 8, ("q_proj",)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", LoraConfig(8, 16, ("all",))),
        ("rank=4", LoraConfig(4, 16, ("all",))),
        ("rank=8,alpha=16,targets=q_proj,v_proj", LoraConfig(8, 16, ("q_proj", "v_proj"))),
        ("targets=q_proj, v_proj ,rank=2", LoraConfig(2, 16, ("q_proj", "v_proj"))),
        ("r=8,lora_alpha=0.5,target_modules=all-linear", LoraConfig(8, 0.5, ("all",))),
    ],
)
def test_lora_option_is_parsed(text: str, expected: LoraConfig) -> None:
    assert parse_lora(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank=many", "rank=many: must be a whole number"),
        ("rank=4,8", "rank=4,8: must be a whole number"),
        ("rank=-1,alpha=0", "alpha=0: must be above 0"),
        ("rnak=4", "rnak: unknown; did you mean rank?"),
        ("q_proj", "q_proj: must be NAME=VALUE"),
        ("targets=", "targets: names no projection"),
    ],
)
def test_invalid_lora_option_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_lora(text)
    assert message in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lora = LoraConfig(4, 8, ("q_proj",))
    return save(adapted(TinyTransformer(TIED), lora), lora, tmp_path / "adapter")


def failure(folder: Path, error: type[FrogError]) -> str:
    with pytest.raises(error) as caught:
        load_adapter(TinyTransformer(TIED), folder)
    return str(caught.value)


def test_adapter_for_another_model_is_rejected(folder: Path) -> None:
    with pytest.raises(ShapeError, match=r"\(4, 48\) in the file, \(4, 96\) in this model"):
        load_adapter(TinyTransformer(ModelConfig(97, 96, 80, 2, 4, 4, 24)), folder)
    with pytest.raises(ShapeError, match=r"missing: layers\.2\.self_attn"):
        load_adapter(TinyTransformer(ModelConfig(97, 48, 80, 3, 4, 4, 24)), folder)


def test_missing_or_damaged_adapter_is_reported(tmp_path: Path, folder: Path) -> None:
    assert "adapter_config.json is missing" in failure(tmp_path / "nowhere", RunError)
    (folder / WEIGHTS_FILE).write_bytes(b"torn")
    assert "cannot be read" in failure(folder, RunError)
    (folder / WEIGHTS_FILE).unlink()
    assert "adapter_model.safetensors is missing" in failure(folder, RunError)
    (folder / CONFIG_FILE).write_text("{")
    assert "not valid JSON" in failure(folder, RunError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora=True: Frog supports only False"),
        ({"use_rslora": True}, "use_rslora=True"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern={'q_proj': 2}"),
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"target_modules": ".*proj"}, "a pattern"),
        ({"modules_to_save": ["embed_tokens"]}, "supports only a head called 'score'"),
    ],
)
def test_adapter_other_than_plain_lora_is_rejected(folder: Path, change: dict[str, Any], message: str) -> None:
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert message in failure(folder, ConfigError)


def test_save_does_not_overwrite_existing_folder(folder: Path) -> None:
    lora = LoraConfig(4, 8, ("q_proj",))
    with pytest.raises(RunError, match="already exists"):
        save(adapted(TinyTransformer(TIED), lora), lora, folder)


def test_unexpected_tensor_is_rejected(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS_FILE)
    save_file({**weights, "base_model.model.model.norm.weight": torch.ones(48)}, folder / WEIGHTS_FILE)
    assert "unexpected: norm.weight" in failure(folder, ShapeError)
