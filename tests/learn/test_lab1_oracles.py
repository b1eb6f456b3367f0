"""The expected results of lab 1's checks equal those of `transformers`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from frog.learn.grader.exercise import find_exercise

llama = pytest.importorskip("transformers.models.llama.modeling_llama")


def parts_of(monkeypatch: pytest.MonkeyPatch, exercise: str) -> tuple[ModuleType, ModuleType]:
    """Load an exercise's check.py and ranks.py."""
    folder = find_exercise(exercise).folder
    return load(monkeypatch, folder / "check.py", "check"), sys.modules["ranks"]


def load(monkeypatch: pytest.MonkeyPatch, path: Path, name: str) -> ModuleType:
    if name == "check":
        load(monkeypatch, path.with_name("ranks.py"), "ranks")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_expected_attention_equals_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    check, ranks = parts_of(monkeypatch, "lab1/03_attention")
    for q, k, v in ranks.make_inputs(5):
        T, C = q.shape[-2:]
        mask = torch.full((T, T), -torch.inf).triu(1)
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False)
        found, _ = llama.eager_attention_forward(module, q, k, v, mask, scaling=C**-0.5)
        torch.testing.assert_close(check.oracle(q, k, v), found.transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_model_of_the_shape_exercise_equals_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    check, ranks = parts_of(monkeypatch, "lab1/05_shape_mismatches")
    for sizes in ranks.SIZES:
        weights = ranks.make_weights(5, sizes)
        config = llama.LlamaConfig(**ranks.COMMON, **sizes)
        model = llama.LlamaForCausalLM(config).eval()
        names = {name if name.startswith("lm_head") else f"model.{name}": value for name, value in weights.items()}
        model.load_state_dict(names)
        tokens, _ = ranks.make_batch(5, 2, 5, sizes["hidden_size"])
        with torch.no_grad():
            expected = model(tokens).logits
        found = check.whole(sizes, weights, tokens, torch.arange(5))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_expected_loss_of_a_padded_batch_equals_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.loss.loss_utils import ForCausalLMLoss

    check, ranks = parts_of(monkeypatch, "lab1/02_token_loss")
    for logits, labels in ranks.make_batches(5).values():
        if (labels != ranks.IGNORE).any():
            expected = ForCausalLMLoss(logits, None, logits.shape[-1], shift_labels=labels)
            assert check.mean(logits, labels) == pytest.approx(float(expected), rel=1e-4)


def test_expected_model_sizes_equal_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    check, ranks = parts_of(monkeypatch, "lab1/06_sizes")
    for config in ranks.make_configs(5):
        with torch.device("meta"):
            model = llama.LlamaForCausalLM(llama.LlamaConfig(**config))
        assert check.count(config) == sum(weight.numel() for weight in model.parameters())
