"""The mixture of experts compared with `transformers`' MixtralForCausalLM with the same weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from frog.core.config import ModelConfig, load_model_config
from frog.core.errors import ConfigError, RunError, ShapeError
from frog.train.model import TinyTransformer, moe
from frog.train.model.hf import load_hf, save_hf

CONFIGS = {
    # vocabulary, width, FFN width, layers, heads, key/value heads, positions
    "2 of 4": ModelConfig(97, 32, 44, 2, 4, 2, 24, num_local_experts=4, router_aux_loss_coef=0.1),
    # One expert's weight is 1, so its router learns from the load-balancing loss alone.
    "1 of 3, untied": ModelConfig(
        *(61, 24, 20, 2, 2, 2, 16),
        tie_word_embeddings=False,
        num_local_experts=3,
        num_experts_per_tok=1,
        router_aux_loss_coef=1.0,
    ),
    "all of 2": ModelConfig(50, 16, 24, 1, 2, 1, 16, num_local_experts=2, router_aux_loss_coef=0.0),
    "3 of 8, one layer": ModelConfig(
        50, 16, 24, 1, 2, 1, 20, num_local_experts=8, num_experts_per_tok=3, router_aux_loss_coef=0.5
    ),
}


def hugging_face(config: ModelConfig) -> MixtralForCausalLM:
    sizes = {name: value for name, value in vars(config).items() if name != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    return MixtralForCausalLM(MixtralConfig(**sizes, rope_parameters=rope, use_cache=False))


def theirs_name(name: str) -> str:
    return name if name == "lm_head.weight" else f"model.{name}"


def twins(config: ModelConfig) -> tuple[TinyTransformer, MixtralForCausalLM]:
    """Return both models with the same weights, so large that the router is decisive and every factor shows."""
    torch.manual_seed(5)
    ours = TinyTransformer(config)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.3)
    theirs = hugging_face(config)
    theirs.load_state_dict({theirs_name(name): tensor for name, tensor in ours.state_dict().items()}, strict=True)
    return ours, theirs


def batch(config: ModelConfig, num_sequences: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(
        0, config.vocab_size, (num_sequences, config.max_position_embeddings + 1), generator=generator
    )
    return tokens[:, :-1], tokens[:, 1:]


def assert_equal(actual: Tensor, expected: Tensor, name: str = "") -> None:
    atol = 1e-5 * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=atol, msg=lambda text: f"{name}: {text}")


def theirs_loss(theirs: MixtralForCausalLM, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return cross-entropy plus the coefficient times the layers' mean load-balancing loss, and the logits."""
    tokens_BT, labels_BT = batch(config)
    out = theirs(input_ids=tokens_BT, output_router_logits=True)
    balance = [
        load_balancing_loss_func((logits,), config.num_local_experts, config.num_experts_per_tok)
        for logits in out.router_logits
    ]
    loss = F.cross_entropy(out.logits.flatten(0, 1), labels_BT.flatten())
    return loss + config.router_aux_loss_coef * torch.stack(balance).mean(), out.logits


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return request.param


def test_moe_logits_loss_and_gradients_match_transformers(config: ModelConfig) -> None:
    ours, theirs = twins(config)
    expected, logits = theirs_loss(theirs, config)
    expected.backward()
    tokens_BT, labels_BT = batch(config)
    assert_equal(ours(tokens_BT), logits, "logits")
    loss = ours(tokens_BT, labels_BT)
    loss.backward()
    assert_equal(loss, expected, "loss")
    names = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert_equal(parameter.grad, names[theirs_name(name)].grad, name)


def test_one_layer_has_the_full_loss_of_transformers() -> None:
    config = CONFIGS["3 of 8, one layer"]
    ours, theirs = twins(config)
    tokens_BT, labels_BT = batch(config)
    out = theirs(input_ids=tokens_BT, output_router_logits=True)
    cross_entropy = F.cross_entropy(out.logits.flatten(0, 1), labels_BT.flatten())
    assert_equal(ours(tokens_BT, labels_BT), cross_entropy + config.router_aux_loss_coef * out.aux_loss)


def without_gate_weight(mixture: moe.MixtureOfExperts, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    probabilities, weights, experts = moe.MixtureOfExperts.route(mixture, x_ND)
    return probabilities, torch.full_like(weights, 1 / mixture.num_active), experts


def not_made_to_sum_to_one(mixture: moe.MixtureOfExperts, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    probabilities, _, experts = moe.MixtureOfExperts.route(mixture, x_ND)
    return probabilities, probabilities.gather(1, experts), experts


@pytest.mark.parametrize("mutant", [without_gate_weight, not_made_to_sum_to_one])
def test_oracle_detects_wrong_router(mutant: object) -> None:
    config = CONFIGS["2 of 4"]
    ours, theirs = twins(config)
    for layer in ours.layers:
        layer.mlp.route = lambda x_ND, mixture=layer.mlp: mutant(mixture, x_ND)  # type: ignore[operator]
    with pytest.raises(AssertionError):
        assert_equal(ours(batch(config)[0]), theirs_loss(theirs, config)[1])


def test_load_balancing_loss_applies_only_in_training() -> None:
    config = CONFIGS["2 of 4"]
    ours, _ = twins(config)
    tokens_BT, labels_BT = batch(config)
    trained = ours(tokens_BT, labels_BT)
    ours.eval()
    assert_equal(ours(tokens_BT, labels_BT), F.cross_entropy(ours(tokens_BT).flatten(0, 1), labels_BT.flatten()))
    assert trained > ours(tokens_BT, labels_BT) + 0.1


def test_load_balancing_loss_matches_hand_computed_value() -> None:
    even, sure = torch.full((4,), 0.5), torch.tensor([1.0, 1.0, 0.0, 0.0])
    assert moe.load_balancing_loss(even, torch.full((9, 4), 0.25)).item() == 2.0
    assert moe.load_balancing_loss(sure, torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 9)).item() == 4.0


def test_unused_expert_has_zero_gradient() -> None:
    model = TinyTransformer(CONFIGS["1 of 3, untied"])
    model.layers[0].mlp.gate.weight.data.zero_()  # a tie: the first expert gets all tokens
    model(*batch(model.config)).backward()
    grad = model.layers[0].mlp.experts.down_proj.grad
    used = [expert.abs().sum().item() > 0 for expert in grad]
    assert sum(used) == 1


def test_activation_checkpointing_is_bitwise_equal_and_keeps_no_losses(config: ModelConfig) -> None:
    plain, _ = twins(config)
    thrifty = TinyTransformer(config, activation_checkpointing=True)
    thrifty.load_state_dict(plain.state_dict())
    losses = [model(*batch(config)) for model in (plain, thrifty)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    for (name, one), other in zip(plain.named_parameters(), thrifty.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name
    assert all(layer.mlp.losses is None for layer in thrifty.layers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_routes_in_float32(dtype: torch.dtype) -> None:
    config = CONFIGS["3 of 8, one layer"]
    model = TinyTransformer(config)
    seen = []
    model.layers[0].mlp.token_fraction = lambda counts, total: seen.append(1) or counts / total
    with torch.autocast("cpu", dtype):
        probabilities, weights, _ = model.layers[0].mlp.route(torch.randn(5, 16))
        loss = model(*batch(config))
    loss.backward()
    assert seen == [1]
    assert (probabilities.dtype, weights.dtype, loss.dtype) == (torch.float32,) * 3
    assert loss.item() == pytest.approx(model(*batch(config)).item(), rel=1e-2)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_moe_parameter_and_flop_counts_are_correct(config: ModelConfig) -> None:
    model = TinyTransformer(config)
    assert sum(p.numel() for p in model.parameters()) == config.num_parameters()
    idle = (config.num_local_experts - config.num_experts_per_tok) * 3 * config.hidden_size * config.intermediate_size
    not_multiplied = (2 * config.num_hidden_layers + 1) * config.hidden_size  # norms
    if not config.tie_word_embeddings:
        not_multiplied += config.vocab_size * config.hidden_size
    active = config.num_parameters() - config.num_hidden_layers * idle
    assert config.flops_per_token(0) == 6 * (active - not_multiplied)
    dense = dataclasses.replace(config, num_local_experts=None)
    router = config.hidden_size * config.num_local_experts
    ffn = (config.num_experts_per_tok - 1) * 3 * config.hidden_size * config.intermediate_size
    extra = config.flops_per_token(16) - dense.flops_per_token(16)
    assert extra == 6 * config.num_hidden_layers * (router + ffn)


def test_invalid_moe_sizes_are_rejected() -> None:
    few = dataclasses.replace(CONFIGS["2 of 4"], num_local_experts=1)
    with pytest.raises(ConfigError, match="num_experts_per_tok=2 of num_local_experts=1"):
        TinyTransformer(few)
    assert "must be at least 0" in dataclasses.replace(few, router_aux_loss_coef=-1.0).problems()[-1]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_transformers_loads_saved_mixtral(config: ModelConfig, tmp_path: Path) -> None:
    ours, _ = twins(config)
    save_hf(ours, tmp_path, None)
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(theirs, MixtralForCausalLM)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert "model.layers.0.block_sparse_moe.experts.1.w3.weight" in load_file(tmp_path / "model.safetensors")
    assert theirs.config.router_aux_loss_coef == config.router_aux_loss_coef
    assert_equal(ours(batch(config)[0]), theirs(input_ids=batch(config)[0]).logits)


def test_mixtral_saved_by_transformers_loads(config: ModelConfig, tmp_path: Path) -> None:
    ours, theirs = twins(config)
    theirs.save_pretrained(tmp_path)
    read, weights = load_hf(tmp_path)
    assert read == config
    assert all(torch.equal(weights[name], tensor) for name, tensor in ours.state_dict().items())


def test_saved_mixtral_loads_back(config: ModelConfig, tmp_path: Path) -> None:
    ours, _ = twins(config)
    save_hf(ours, tmp_path, None)
    read, weights = load_hf(tmp_path)
    assert read == config
    assert all(torch.equal(weights[name], tensor) for name, tensor in ours.state_dict().items())


def test_missing_or_misshapen_expert_is_rejected(tmp_path: Path) -> None:
    save_hf(TinyTransformer(CONFIGS["2 of 4"]), tmp_path, None)
    path = tmp_path / "model.safetensors"
    weights, name = load_file(path), "model.layers.0.block_sparse_moe.experts.3.w2.weight"
    save_file({**weights, name: torch.ones(3, 4)}, path)
    with pytest.raises(ShapeError, match=r"layers\.0\.mlp\.experts: w2 differ in shape"):
        load_hf(tmp_path)
    save_file({key: tensor for key, tensor in weights.items() if key != name}, path)
    with pytest.raises(ShapeError, match=r"layers\.0\.mlp\.experts\.down_proj has shape \(3, 32, 44\)"):
        load_hf(tmp_path)
    save_file({key: tensor for key, tensor in weights.items() if ".1.block_sparse_moe.experts" not in key}, path)
    with pytest.raises(RunError, match=r"missing: layers\.1\.mlp\.experts\.down_proj"):
        load_hf(tmp_path)


def test_mixtral_config_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {name: value for name, value in vars(CONFIGS["2 of 4"]).items() if name != "num_local_experts"}
    path.write_text(json.dumps(sizes | {"model_type": "mixtral", "num_local_experts": 4}))
    assert load_model_config(path) == CONFIGS["2 of 4"]
    path.write_text(json.dumps(sizes | {"model_type": "mixtral"}))
    assert load_model_config(path).num_local_experts == 8
    path.write_text(json.dumps(sizes | {"model_type": "llama", "num_local_experts": 4}))
    with pytest.raises(ConfigError, match="num_local_experts=4: model_type='llama' has no experts"):
        load_model_config(path)
    path.write_text(json.dumps(sizes | {"model_type": "mixtral", "sliding_window": 5}))
    with pytest.raises(ConfigError, match="sliding_window=5"):
        load_model_config(path)
