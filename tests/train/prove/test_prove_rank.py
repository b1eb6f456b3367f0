"""The proof's own parts, in this process: batches of ranks, oracles, the comparison, and a world of one."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frog.core.config import OptimizerConfig, StrategyConfig
from frog.core.config.model import IGNORED_LABEL
from frog.core.env import world_env
from frog.train.comm import World
from frog.train.prove import prove_rank
from frog.train.prove.matrix import DEFAULT_VARIANTS, SMALL_MODEL, Cell, Variant, cells
from frog.train.prove.prove_rank import NUM_STEPS, Case, Trace, _oracle_key, compare, global_batch, local_batch, prove


def case(strategy: str = "ddp-naive", variant: Variant | None = None, world_size: int = 1) -> Case:
    (cell,) = cells(SMALL_MODEL, [world_size], ["frog"], [variant or Variant("plain")], [strategy])
    assert isinstance(cell, Cell)
    return Case.of(cell.fields(0), Path("cases.json"))


def alone() -> World:
    return World(world_env(), torch.device("cpu"), timeout_s=10)


# ---- a world of one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant", [*DEFAULT_VARIANTS, Variant("bf16", precision="bf16")], ids=lambda variant: variant.name
)
@pytest.mark.parametrize("strategy", ["ddp-bucketed", "diloco"])
def test_strategy_equals_its_oracle_in_a_world_of_one(strategy: str, variant: Variant) -> None:
    (result,) = prove([case(strategy, variant)], alone(), {})
    assert result["equal"], result["first"]
    assert result["bitwise"] or result["weight"] > 0


@pytest.mark.parametrize(
    ("strategy", "first"),
    [("ddp-naive", "weight of embed_tokens.weight after step 1"), ("diloco", "loss of the batch after step 2")],
)
def test_gradient_that_is_not_clipped_is_found(strategy: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frog.train.parallel.scratch.FromScratch.clip", lambda *args: None)
    (result,) = prove([case(strategy)], alone(), {})
    assert not result["equal"]
    assert result["first"].startswith(first)


def test_impossible_case_is_a_result_with_its_reason() -> None:
    impossible = case("dp x tp", world_size=4)
    result, plain = prove([impossible, case()], alone(), {})
    assert (result["name"], result["equal"]) == ("0", False)
    assert result["first"].startswith("ConfigError: ")
    assert plain["equal"]


def test_clipping_takes_part_in_every_proof() -> None:
    """Every gradient is above the norm at which the proof clips, or clipping would not be proved."""
    for variant in DEFAULT_VARIANTS:
        assert min(prove_rank.one_process(case(variant=variant), 1).norms) > prove_rank._MAX_NORM


def test_replicas_that_meet_after_each_step_equal_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With plain SGD, an outer step that takes the mean is the step of the mean gradient; clipping would differ."""
    monkeypatch.setattr(prove_rank, "_MAX_NORM", math.inf)
    plain = case("ddp-naive", Variant("sgd", optimizer="sgd", uneven=True), world_size=2)
    sgd = replace(plain.config, optimizer=OptimizerConfig("sgd", momentum=0.0))
    strategy = StrategyConfig(name="diloco", inner_steps=1, outer_learning_rate=1.0, outer_momentum=0.0)
    together = prove_rank.one_process(replace(plain, config=sgd), 2)
    in_turn = prove_rank.one_process(replace(plain, config=replace(sgd, strategy=strategy)), 2)
    for step in range(NUM_STEPS):
        assert in_turn.losses[step] == pytest.approx(together.losses[step], rel=1e-5)
        for name, weight in together.weights[step].items():
            torch.testing.assert_close(in_turn.weights[step][name], weight, rtol=1e-4, atol=1e-6)


# ---- the batch and the model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_batches_of_the_ranks_are_the_global_batch(world_size: int, uneven: bool) -> None:
    own = case(variant=Variant("v", uneven=uneven, accumulate=True), world_size=world_size)
    for step in (1, 2):
        tokens, labels = global_batch(own, step)
        size, length = own.config.train.global_batch_size, own.config.data.sequence_length
        assert tokens.shape == labels.shape == (size, length)
        assert torch.equal(tokens[:, 1:][: size - uneven], labels[:, :-1][: size - uneven])
        assert (labels == IGNORED_LABEL).sum() == length * uneven
        meshes: list[Any] = [SimpleNamespace(dp=SimpleNamespace(rank=r, size=world_size)) for r in range(world_size)]
        parts = [local_batch(own, mesh, step) for mesh in meshes]
        assert torch.equal(torch.cat([part.tokens_ABT.flatten(0, 1) for part in parts]), tokens)
        assert torch.equal(torch.cat([part.labels_ABT.flatten(0, 1) for part in parts]), labels)
        num_labels = (labels != IGNORED_LABEL).sum().item()
        for part in parts:
            assert (part.step, part.tokens_ABT.shape[0], len(part.ids_N)) == (step, 2, size // world_size)
            counts = (part.labels_ABT != IGNORED_LABEL).sum(dim=(1, 2)).tolist()
            assert part.loss_weight_A == pytest.approx([count * world_size / num_labels for count in counts])
    assert not torch.equal(global_batch(own, 1)[0], global_batch(own, 2)[0])


def test_model_of_a_proof_has_norms_unlike_ones_and_frozen_weights_of_both_kinds() -> None:
    plain, frozen = (prove_rank.make_model(case(variant=Variant("v", frozen=is_frozen)), 0) for is_frozen in (0, 1))
    norms = [parameter for parameter in plain.parameters() if parameter.dim() == 1]
    assert all(0 < (norm - 1).abs().max() < 0.6 for norm in norms)
    assert all(parameter.requires_grad for parameter in plain.parameters())
    kept = {name.removeprefix("model.") for name, p in frozen.named_parameters() if not p.requires_grad}
    assert kept == {"layers.0.mlp.up_proj.weight", "layers.0.input_layernorm.weight"}
    other = prove_rank.make_model(case(), 1)
    assert not any(torch.equal(a, b) for a, b in zip(plain.parameters(), other.parameters(), strict=True))


def test_loss_of_a_mixture_is_the_mean_over_ranks_and_micro_batches() -> None:
    mixture = case("ep", Variant("accumulated", accumulate=True), world_size=2)
    model = prove_rank.make_model(mixture, 0)
    tokens, labels = global_batch(mixture, 1)
    # Two ranks with two micro-batches each: a micro-batch is the n-th quarter of each half.
    assert len(tokens) == 8
    losses = []
    for micro in (0, 1):
        rows = [*range(2 * micro, 2 * micro + 2), *range(4 + 2 * micro, 4 + 2 * micro + 2)]
        losses.append(model(tokens[rows], labels[rows]))
    torch.testing.assert_close(prove_rank._mixture_loss(model, mixture, 2, 1), (losses[0] + losses[1]) / 2)


@pytest.mark.parametrize("gradient", [(0.3, 0.4), (0.6, 0.8)])
def test_clipping_leaves_a_gradient_of_at_most_the_norm(gradient: tuple[float, float]) -> None:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    for parameter, value in zip(parameters, gradient, strict=False):
        parameter.grad = torch.tensor([value])
    norm = prove_rank._clip(parameters)
    assert norm == pytest.approx(math.hypot(*gradient))
    factor = min(1.0, 0.5 / norm)
    clipped = [parameter.grad.item() for parameter in parameters if parameter.grad is not None]
    assert clipped == pytest.approx([value * factor for value in gradient])


def test_oracle_is_shared_by_all_strategies_that_compute_the_same() -> None:
    keys = {_oracle_key(case(name, world_size=2), 2) for name in ("ddp-naive", "ddp-bucketed", "zero1", "zero3")}
    assert len(keys) == 1
    plain = case(world_size=2)
    config = plain.config
    others = [
        replace(plain, frozen=True),
        replace(plain, uneven=True),
        replace(plain, config=replace(config, train=replace(config.train, precision="bf16"))),
        replace(plain, config=replace(config, train=replace(config.train, global_batch_size=16))),
        replace(plain, config=replace(config, data=replace(config.data, sequence_length=8))),
        replace(
            plain,
            config=replace(
                config, model=replace(config.model, tie_word_embeddings=not config.model.tie_word_embeddings)
            ),
        ),
        replace(plain, config=replace(config, optimizer=OptimizerConfig("sgd"))),
        case("diloco", world_size=2),
        case("ep", world_size=2),
    ]
    keys |= {_oracle_key(other, 2) for other in others}
    assert len(keys) == 1 + len(others)
    # Experts are balanced in each micro-batch of all data ranks, and replicas differ from each other.
    for strategy in ("ep", "diloco"):
        own = case(strategy, world_size=2)
        assert _oracle_key(own, 2) != _oracle_key(own, 4)
    assert _oracle_key(plain, 2) == _oracle_key(plain, 4)


# ---- the comparison --------------------------------------------------------------------------------------------------


def traces() -> tuple[Trace, Trace]:
    """Return two equal traces."""
    tensors = [{"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([0.0])} for _ in range(NUM_STEPS)]
    one = Trace([2.0] * NUM_STEPS, tensors, copy.deepcopy(tensors), [8.0] * NUM_STEPS)
    return one, copy.deepcopy(one)


def test_equal_traces_are_bitwise_equal() -> None:
    assert compare(*traces(), 0.0) == {
        "equal": True, "bitwise": True, "loss": 0.0, "norm": 0.0, "gradient": 0.0, "weight": 0.0, "first": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "difference", "name"),
    [
        ("loss", 2.5, 0.25, "the batch"),
        ("loss", 1.5, 0.25, "the batch"),
        ("norm", 9.0, 0.125, "the gradient"),
        ("gradient", torch.tensor([2.0, -4.0]), 0.25, "a"),
        ("weight", torch.tensor([1.0, -2.0]), 0.5, "a"),
        ("weight", torch.tensor([1.0, math.nan]), math.inf, "a"),
    ],
)
def test_difference_is_the_largest_one_over_the_largest_value(
    kind: str, value: float | Tensor, difference: float, name: str
) -> None:
    for step in (0, NUM_STEPS - 1):
        found, expected = traces()
        if kind in ("loss", "norm"):
            {"loss": found.losses, "norm": found.norms}[kind][step] = value  # type: ignore[assignment, call-overload]
        else:
            {"gradient": found.gradients, "weight": found.weights}[kind][step]["a"] = value  # type: ignore[assignment]
        zeros = dict.fromkeys(("loss", "norm", "gradient", "weight"), 0.0)
        rest = zeros | {kind: difference, "bitwise": False}
        first = f"{kind} of {name} after step {step + 1} differs by {difference:.1e}"
        assert compare(found, expected, min(1e9, difference * 0.99)) == {"equal": False, "first": first, **rest}
        if difference < math.inf:
            assert compare(found, expected, difference) == {"equal": True, "first": None, **rest}


def test_first_difference_is_the_loss_of_the_earliest_step() -> None:
    found, expected = traces()
    found.losses[2], found.norms[1], found.weights[1]["a"] = 5.0, 5.0, torch.zeros(2)
    result = compare(found, expected, 0.1)
    assert result["first"].startswith("norm of the gradient after step 2")
    assert (result["loss"], result["norm"], result["weight"]) == (1.5, 0.375, 1.0)
    found, expected = traces()
    found.weights[0]["b"] += 1e-12  # a weight that should be zero has no scale of its own
    assert compare(found, expected, 0.1)["weight"] == pytest.approx(1.0)
