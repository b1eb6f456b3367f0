"""The model compared with `transformers`' Llama or Qwen3 with the same weights, and its own guarantees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from frog.core.config import ModelConfig
from frog.core.errors import ConfigError, ShapeError
from frog.train.model import TinyTransformer

RTOL = 1e-5
ATOL_OF_LARGEST = 1e-5
"""Tolerance relative to the tensor's largest element, since an element near zero sums larger ones that cancel."""

CONFIGS = {
    # vocabulary, width, FFN width, layers, heads, key/value heads, positions
    "plain": ModelConfig(211, 64, 172, 2, 4, 4, 32),
    "grouped": ModelConfig(97, 96, 200, 3, 6, 2, 48, rope_theta=500_000.0, tie_word_embeddings=False),
    "one key/value head, untied": ModelConfig(300, 80, 77, 2, 5, 1, 40, rope_theta=1000.0, tie_word_embeddings=False),
    "odd sizes": ModelConfig(31, 42, 53, 1, 7, 7, 19, rms_norm_eps=1e-3),
    "one layer, one head": ModelConfig(50, 16, 24, 1, 1, 1, 9, tie_word_embeddings=False),
    "QK norm": ModelConfig(97, 96, 200, 3, 6, 2, 48, rms_norm_eps=1e-3, qk_norm=True),
    "demo": ModelConfig(2048, 128, 344, 4, 4, 4, 64),
}


def hugging_face(config: ModelConfig) -> LlamaForCausalLM | Qwen3ForCausalLM:
    sizes = {name: value for name, value in vars(config).items() if name != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.qk_norm:
        return Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=config.head_dim, rope_parameters=rope, use_cache=False))
    return LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope, use_cache=False))


def twins(config: ModelConfig) -> tuple[TinyTransformer, LlamaForCausalLM | Qwen3ForCausalLM]:
    """Return both models with the same weights; norms away from one and large matrices make every factor visible."""
    torch.manual_seed(5)
    ours = TinyTransformer(config)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.3 if "norm" in name else 0.15)
    theirs = hugging_face(config)
    weights = {name if name == "lm_head.weight" else f"model.{name}": t for name, t in ours.state_dict().items()}
    theirs.load_state_dict(weights, strict=True)
    return ours, theirs


def batch(config: ModelConfig, num_sequences: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    T = config.max_position_embeddings
    tokens = torch.randint(0, config.vocab_size, (num_sequences, T + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def assert_equal(actual: Tensor, expected: Tensor, name: str) -> None:
    atol = ATOL_OF_LARGEST * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=RTOL, atol=atol, msg=lambda text: f"{name}: {text}")


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return request.param


def test_logits_and_gradients_match_transformers(config: ModelConfig) -> None:
    ours, theirs = twins(config)
    tokens_BT, labels_BT = batch(config)
    logits = theirs(input_ids=tokens_BT).logits
    assert_equal(ours(tokens_BT), logits, "logits")

    expected = F.cross_entropy(logits.flatten(0, 1), labels_BT.flatten())
    expected.backward()
    loss = ours(tokens_BT, labels_BT)
    loss.backward()
    assert_equal(loss, expected, "loss")
    names = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert_equal(parameter.grad, names[name if name == "lm_head.weight" else f"model.{name}"].grad, name)


def test_loss_from_labels_equals_loss_of_logits(config: ModelConfig) -> None:
    model, _ = twins(config)
    tokens_BT, labels_BT = batch(config)
    F.cross_entropy(model(tokens_BT).flatten(0, 1), labels_BT.flatten()).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    model(tokens_BT, labels_BT).backward()
    for name, parameter in model.named_parameters():
        assert_equal(parameter.grad, expected[name], name)


def test_state_dict_has_transformers_names(config: ModelConfig) -> None:
    theirs = {name.removeprefix("model.") for name in hugging_face(config).state_dict()}
    assert set(TinyTransformer(config).state_dict()) == theirs


def test_num_parameters_matches_model(config: ModelConfig) -> None:
    assert sum(p.numel() for p in TinyTransformer(config).parameters()) == config.num_parameters()


def test_activation_checkpointing_is_bitwise_equal(config: ModelConfig) -> None:
    plain, _ = twins(config)
    thrifty = TinyTransformer(config, activation_checkpointing=True)
    thrifty.load_state_dict(plain.state_dict())
    tokens_BT, labels_BT = batch(config)
    losses = [model(tokens_BT, labels_BT) for model in (plain, thrifty)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    for (name, one), other in zip(plain.named_parameters(), thrifty.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name


def test_activation_checkpointing_runs_each_layer_twice() -> None:
    model = TinyTransformer(CONFIGS["plain"], activation_checkpointing=True)
    calls = []
    model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    model(*batch(CONFIGS["plain"])).backward()
    assert len(calls) == 2


def test_logits_do_not_depend_on_later_tokens(config: ModelConfig) -> None:
    model, _ = twins(config)
    tokens_BT, _ = batch(config)
    T = tokens_BT.shape[1]
    with torch.no_grad():
        before = model(tokens_BT)
        for t in (1, T // 2, T - 1):
            changed = tokens_BT.clone()
            changed[:, t] = (changed[:, t] + 1) % config.vocab_size
            after = model(changed)
            assert torch.equal(after[:, :t], before[:, :t])
            assert not torch.allclose(after[:, t], before[:, t])


def test_weights_are_determined_by_seed() -> None:
    config = CONFIGS["grouped"]
    torch.manual_seed(1)
    one = TinyTransformer(config).state_dict()
    torch.manual_seed(1)
    same = TinyTransformer(config).state_dict()
    other = TinyTransformer(config).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])
    assert one["layers.0.mlp.up_proj.weight"].std().item() == pytest.approx(config.initializer_range, rel=0.05)
    assert torch.equal(one["norm.weight"], torch.ones(config.hidden_size))


def test_tied_embedding_is_one_parameter() -> None:
    tied = TinyTransformer(CONFIGS["plain"])
    assert tied.lm_head.weight is tied.embed_tokens.weight
    untied = TinyTransformer(CONFIGS["grouped"])
    assert untied.lm_head.weight is not untied.embed_tokens.weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_loss_in_float32(dtype: torch.dtype) -> None:
    config = CONFIGS["demo"]
    model = TinyTransformer(config)
    tokens_BT, labels_BT = batch(config)
    products = []
    model.layers[0].mlp.up_proj.register_forward_hook(lambda _module, _inputs, output: products.append(output.dtype))
    with torch.autocast("cpu", dtype):
        loss = model(tokens_BT, labels_BT)
    loss.backward()
    assert loss.dtype == torch.float32
    assert products == [dtype]
    assert loss.item() == pytest.approx(model(tokens_BT, labels_BT).item(), rel=1e-3)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_sequence_longer_than_max_positions_is_rejected() -> None:
    model = TinyTransformer(CONFIGS["odd sizes"])
    with pytest.raises(ShapeError, match="sequence of 20 tokens, but max_position_embeddings=19"):
        model(torch.zeros(1, 20, dtype=torch.long))


def test_invalid_sizes_are_rejected() -> None:
    with pytest.raises(ConfigError, match="hidden_size=42 is not a multiple of num_attention_heads=4"):
        TinyTransformer(ModelConfig(31, 42, 53, 1, 4, 4, 19))
