"""The classification head compared with transformers' LlamaForSequenceClassification, alone and with `peft`."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    MixtralForSequenceClassification,
)

from frog.core.config import ModelConfig
from frog.core.config.finetune import LoraConfig
from frog.core.config.model import IGNORED_LABEL
from frog.core.errors import ConfigError
from frog.train.model import TinyTransformer
from frog.train.model.adapter import WEIGHTS_FILE, load_adapter, save_adapter
from frog.train.model.classifier import Classifier
from frog.train.model.functions import labelled_loss
from frog.train.model.hf import save_hf_classifier
from frog.train.model.lora import add_lora, trained_parameters, unload_lora

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

CONFIGS = {
    "tied": ModelConfig(97, 48, 80, 2, 4, 4, 24),
    "untied": ModelConfig(97, 48, 80, 2, 6, 2, 24, rope_theta=5000.0, tie_word_embeddings=False),
}
PAD = 0
LENGTHS = [20, 7, 1, 13]
CLASSES = torch.tensor([2, 0, 1, 1])
LORA = LoraConfig(4, 8, ("all",))


def batch() -> tuple[Tensor, Tensor]:
    """Return texts of several lengths, padded on the right, and the position of each text's last token."""
    tokens = torch.randint(1, 97, (4, 20), generator=torch.Generator().manual_seed(2))
    for row, length in enumerate(LENGTHS):
        tokens[row, length:] = PAD
    return tokens, torch.tensor(LENGTHS) - 1


def labels_of(last_B: Tensor) -> Tensor:
    labels = torch.full((4, 20), IGNORED_LABEL)
    labels[torch.arange(4), last_B] = CLASSES
    return labels


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def ours(request: pytest.FixtureRequest) -> Classifier:
    torch.manual_seed(1)
    base = TinyTransformer(request.param)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return Classifier.from_base(base, 3)


def in_transformers(model: Classifier) -> LlamaForSequenceClassification:
    config = model.config
    sizes = {
        name: value
        for name, value in vars(config).items()
        if name != "rope_theta" and "expert" not in name and "router" not in name
    }
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    theirs = LlamaForSequenceClassification(
        LlamaConfig(**sizes, rope_parameters=rope, num_labels=3, pad_token_id=PAD, use_cache=False)
    )
    names = {name if name == "score.weight" else f"model.{name}": t for name, t in model.state_dict().items()}
    theirs.load_state_dict(names, strict=True)
    return theirs


def assert_close(actual: Tensor, expected: Tensor, name: str = "logits") -> None:
    atol = 1e-5 * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=atol, msg=lambda text: f"{name}: {text}")


def test_classifier_outputs_and_gradients_match_transformers(ours: Classifier) -> None:
    theirs = in_transformers(ours)
    tokens, last = batch()
    logits = theirs(input_ids=tokens).logits
    assert_close(ours.classify(tokens, last), logits)
    expected = F.cross_entropy(logits, CLASSES)
    expected.backward()
    loss = ours(tokens, labels_of(last))
    loss.backward()
    assert_close(loss, expected, "loss")
    names = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, names[name if name == "score.weight" else f"model.{name}"].grad, name)


def test_saved_classifier_gives_the_same_outputs_with_peft(ours: Classifier, tmp_path: Path) -> None:
    theirs = in_transformers(ours)
    plain = copy.deepcopy(ours)
    add_lora(ours, LORA)
    ours.score.requires_grad_(True)
    with torch.no_grad():
        for parameter in trained_parameters(ours).values():
            parameter.normal_(0.0, 0.2)
    labels = ["a", "b", "c"]
    save_adapter(ours, LORA, tmp_path / "adapter", base="runs/base", labels=labels)
    tokens, last = batch()
    with torch.no_grad():
        expected = ours.classify(tokens, last)
        assert_close(PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()(input_ids=tokens).logits, expected)
        again = Classifier.from_base(TinyTransformer(plain.config), 3)
        again.load_state_dict(plain.state_dict() | {"score.weight": again.score.weight})
        load_adapter(again, tmp_path / "adapter")
        assert torch.equal(again.classify(tokens, last), expected)
    with safe_open(tmp_path / "adapter" / WEIGHTS_FILE, framework="pt") as file:
        assert json.loads(file.metadata()["labels"]) == labels


def test_merged_classifier_loads_in_transformers(ours: Classifier, tmp_path: Path) -> None:
    add_lora(ours, LORA)
    with torch.no_grad():
        for parameter in trained_parameters(ours).values():
            parameter.normal_(0.0, 0.2)
    tokens, last = batch()
    with torch.no_grad():
        expected = ours.classify(tokens, last)
        unload_lora(ours)
        save_hf_classifier(ours, tmp_path / "out", None, ["a", "b", "c"])
        theirs, info = LlamaForSequenceClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
        assert_close(theirs.eval()(input_ids=tokens).logits, expected)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}


def test_saved_classifier_pads_with_the_token_that_ends_a_text(ours: Classifier, tmp_path: Path) -> None:
    end_id = 9
    added = [{"id": 1, "content": "<s>", "special": True}, {"id": end_id, "content": "</s>", "special": True}]
    tokenizer_json = tmp_path / "tokenizer.json"
    tokenizer_json.write_text(json.dumps({"added_tokens": added}))
    save_hf_classifier(ours, tmp_path / "out", tokenizer_json, ["a", "b", "c"])
    theirs = LlamaForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    ends_with_token_0 = torch.tensor([[3, 4, 0, end_id, end_id], [5, 6, 7, 8, 0]])
    last = torch.tensor([2, 4])
    with torch.no_grad():
        assert_close(theirs(input_ids=ends_with_token_0).logits, ours.classify(ends_with_token_0, last))
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"] == "</s>"


def test_classifier_with_experts_is_saved_as_mixtral(tmp_path: Path) -> None:
    config = ModelConfig(97, 48, 40, 2, 4, 2, 24, num_local_experts=4, tie_word_embeddings=False)
    torch.manual_seed(3)
    ours = Classifier(config, 3)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.3)
    save_hf_classifier(ours, tmp_path / "out", None, ["a", "b", "c"])
    theirs, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(theirs) is MixtralForSequenceClassification
    assert theirs.config.architectures == ["MixtralForSequenceClassification"]
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokens, last = batch()
    with torch.no_grad():
        assert_close(theirs.eval()(input_ids=tokens).logits, ours.classify(tokens, last))


def test_padding_does_not_change_scores(ours: Classifier) -> None:
    tokens, last = batch()
    with torch.no_grad():
        scores = ours.classify(tokens, last)
        for row, length in enumerate(LENGTHS):
            assert_close(ours.classify(tokens[row : row + 1, :length], last[row : row + 1])[0], scores[row])


def test_classifier_copies_base_weights(ours: Classifier) -> None:
    base = TinyTransformer(ours.config)
    classifier = Classifier.from_base(base, 2)
    assert "lm_head.weight" not in classifier.state_dict()
    with torch.no_grad():
        classifier.embed_tokens.weight.zero_()
    assert base.embed_tokens.weight.abs().sum() > 0


def test_classifier_with_one_class_is_rejected() -> None:
    with pytest.raises(ConfigError, match="classifier of 1 classes"):
        Classifier(CONFIGS["tied"], 1)


@pytest.mark.parametrize("kept", ["some", "all"])
def test_labelled_loss_equals_cross_entropy(kept: str) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3, 11, 16, generator=generator, requires_grad=True)
    w = torch.randn(29, 16, generator=generator, requires_grad=True)
    labels = torch.randint(0, 29, (3, 11), generator=generator)
    if kept == "some":
        labels[torch.rand(3, 11, generator=generator) < 0.6] = IGNORED_LABEL
    loss = labelled_loss(x, w, labels)
    loss.backward()
    found = (x.grad, w.grad)
    x.grad = w.grad = None
    expected = F.cross_entropy((x @ w.T).flatten(0, 1), labels.flatten())
    expected.backward()
    for name, one, other in zip(("loss", "x", "w"), (loss, *found), (expected, x.grad, w.grad), strict=True):
        assert_close(one, other, name)


def test_batch_without_labels_has_zero_gradient() -> None:
    x, w = torch.randn(2, 5, 8, requires_grad=True), torch.randn(9, 8, requires_grad=True)
    loss = labelled_loss(x, w, torch.full((2, 5), IGNORED_LABEL))
    loss.backward()
    assert loss.item() == 0
    assert x.grad is not None
    assert w.grad is not None
    assert not x.grad.any()
    assert not w.grad.any()
