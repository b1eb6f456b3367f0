"""The cells of the matrix: which strategies a world has, and what a variant changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from frog.core.config import ModelConfig, StrategyConfig
from frog.core.config.strategies import DATA_STRATEGIES, WHOLE_WORLD
from frog.train.prove.matrix import (
    ALL_VARIANTS,
    DEFAULT_VARIANTS,
    IMPLEMENTATIONS,
    PRODUCTS,
    SMALL_MODEL,
    Cell,
    Variant,
    cells,
    own_cells,
    proofs,
)

MODEL = ModelConfig(96, 32, 64, 4, 8, 8, 32)
EXPERTS = ModelConfig(96, 32, 64, 4, 8, 8, 32, num_local_experts=8)
ALONE = {name for name, fields in proofs().items() if fields.get("name", "ddp") in DATA_STRATEGIES} & {
    "ddp-naive", "ddp-bucketed", "ddp-overlapped", "zero1", "zero2", "zero3", "diloco",
}  # fmt: skip
SPLIT = {name for name, fields in proofs().items() if WHOLE_WORLD in fields.values()}
HYBRID = {"hybrid zero1", "hybrid zero2", "hybrid zero3"}


def names(world_size: int, implementation: str = "frog") -> set[str]:
    found = cells(MODEL, [world_size], [implementation], DEFAULT_VARIANTS[:1])
    return {cell.strategy for cell in found if isinstance(cell, Cell)}


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration's fields by section and name."""
    sections = {name: table for name, table in config.items() if isinstance(table, dict)}
    return {f"{name}.{key}": value for name, table in sections.items() for key, value in table.items()}


def one(name: str, world_size: int, variant: Variant, model: ModelConfig = MODEL) -> Cell | str:
    (cell,) = cells(model, [world_size], ["frog"], [variant], [name])
    return cell


@pytest.mark.parametrize(
    ("world_size", "expected"),
    [
        (1, ALONE),
        (2, ALONE | SPLIT | {"pp-interleaved"}),
        (4, ALONE | SPLIT | HYBRID | set(PRODUCTS) - {"dp x tp x pp"}),
        (8, (ALONE | SPLIT | HYBRID | set(PRODUCTS)) - {"ep", *(name for name in SPLIT if name.startswith("pp"))}),
    ],
)
def test_world_has_every_strategy_that_differs_in_it(world_size: int, expected: set[str]) -> None:
    """Products need four ranks, one rank has nothing to split, and 8 need more than 4 layers or experts."""
    assert names(world_size) == expected


def test_implementations_have_their_own_strategies() -> None:
    assert set(proofs("deepspeed")) == {"zero1", "zero2", "zero3"} == names(2, "deepspeed")
    assert set(proofs("torch")) >= {"ddp", *HYBRID, "tp", "pp-gpipe", "zero3 x tp"}
    assert not {"diloco", "cp", "ep", "dp x cp", "ddp-naive"} & set(proofs("torch"))
    both = [cell for cell in cells(MODEL, [2, 4], IMPLEMENTATIONS, DEFAULT_VARIANTS[:1]) if isinstance(cell, Cell)]
    assert {(cell.implementation, cell.world_size) for cell in both} == {
        (implementation, size) for implementation in IMPLEMENTATIONS for size in (2, 4)
    }
    assert all(cell.config.strategy.implementation == cell.implementation for cell in both)


def test_sizes_of_a_strategy_are_those_of_its_name() -> None:
    def sizes(name: str, world_size: int) -> tuple[int, ...]:
        cell = one(name, world_size, Variant("plain"))
        assert isinstance(cell, Cell)
        strategy = cell.config.strategy
        return (strategy.dp_size(world_size), strategy.tp, strategy.pp, strategy.cp, strategy.ep)

    assert sizes("zero1", 4) == (4, 1, 1, 1, 1)
    assert sizes("tp", 4) == (1, 4, 1, 1, 1)
    assert sizes("dp x tp", 4) == (2, 2, 1, 1, 1)
    assert sizes("tp x pp", 4) == (1, 2, 2, 1, 1)
    assert sizes("dp x tp x pp", 8) == (2, 2, 2, 1, 1)
    assert sizes("zero3 x cp", 4) == (2, 1, 1, 2, 1)
    assert sizes("ep", 4) == (4, 1, 1, 1, 4)
    assert sizes("zero2 x ep", 4) == (4, 1, 1, 1, 2)


@pytest.mark.parametrize("strategy", ["ddp-naive", "tp", "pp-1f1b", "cp", "diloco"])
def test_every_variant_is_another_case(strategy: str) -> None:
    """A variant that changes nothing would prove the plain case again."""
    found = [one(strategy, 2, variant) for variant in ALL_VARIANTS]
    cases = [msgspec.structs.asdict(cell.fields(0)) for cell in found if isinstance(cell, Cell)]
    if strategy == "pp-1f1b":  # which always has micro-batches
        cases = [case for case, variant in zip(cases, ALL_VARIANTS, strict=False) if variant.name != "accumulated"]
    assert len(cases) > len(ALL_VARIANTS) - 3
    assert all(case not in cases[:number] for number, case in enumerate(cases))


@pytest.mark.parametrize(
    ("variant", "changed"),
    [
        (Variant("accumulated", accumulate=True), {"train.grad_accum": 2}),
        (Variant("tying", flip_tying=True), {"model.tie_word_embeddings": not MODEL.tie_word_embeddings}),
        (Variant("bf16", precision="bf16"), {"train.precision": "bf16"}),
        (Variant("recomputed", recompute=True), {"train.activation_checkpointing": True}),
        (Variant("norm", qk_norm=True), {"model.qk_norm": True}),
        (Variant("sgd", optimizer="sgd"), {"optimizer.name": "sgd"}),
        (Variant("frozen", frozen=True), {}),
    ],
)
def test_variant_changes_only_what_it_names(variant: Variant, changed: dict[str, object]) -> None:
    plain, other = one("ddp-naive", 2, Variant("plain")), one("ddp-naive", 2, variant)
    assert isinstance(plain, Cell)
    assert isinstance(other, Cell)
    before, after = (flat(cell.fields(3).config) for cell in (plain, other))
    assert {key for key in after if before[key] != after[key]} == changed.keys()
    assert {key: after[key] for key in changed} == changed
    assert (other.fields(3).name, other.fields(3).frozen, other.fields(3).uneven) == ("3", variant.frozen, False)


@pytest.mark.parametrize(
    ("name", "world_size", "accumulate", "sizes"),
    [
        ("zero1", 1, False, (1, 4)), ("zero1", 4, False, (1, 16)), ("zero1", 2, True, (2, 8)),
        ("pp-gpipe", 2, False, (4, 8)), ("pp-gpipe", 2, True, (4, 8)), ("dp x pp", 4, False, (4, 16)),
        ("tp", 4, False, (1, 4)), ("cp", 2, True, (2, 4)),
    ],
)  # fmt: skip
def test_batch_has_rows_for_each_rank_and_micro_batch(
    name: str, world_size: int, accumulate: bool, sizes: tuple[int, int]
) -> None:
    """Four sequences for each data rank; with several micro-batches two for each of them."""
    cell = one(name, world_size, Variant("v", accumulate=accumulate))
    assert isinstance(cell, Cell)
    assert (cell.config.train.grad_accum, cell.config.train.global_batch_size) == sizes
    assert cell.config.data.sequence_length == 16


def test_cells_of_experts_leave_out_what_would_not_equal_an_oracle() -> None:
    every = Variant("all, uneven", uneven=True, qk_norm=True)
    cell = one("ep", 4, every)
    assert isinstance(cell, Cell)
    assert (cell.config.model.num_local_experts, cell.config.model.qk_norm) == (4, False)
    assert (cell.variant.name, cell.variant.uneven) == ("all", False)
    bf16 = one("ep", 4, Variant("bf16", precision="bf16"))
    assert bf16 == "ep, bf16: rounding sends some tokens to other experts, so no oracle equals it"
    # The user's own experts are kept, also without a strategy for them.
    for name in ("ep", "ddp-naive"):
        own = one(name, 4, every, EXPERTS)
        assert isinstance(own, Cell)
        assert (own.config.model.num_local_experts, own.config.model.qk_norm, own.variant.uneven) == (8, False, False)
    assert isinstance(one("ddp-naive", 4, Variant("bf16", precision="bf16"), EXPERTS), str)
    uneven = one("ddp-naive", 4, every)
    assert isinstance(uneven, Cell)
    assert (uneven.variant, uneven.config.model.num_local_experts) == (every, None)


def test_short_model_has_short_sequences_and_impossible_cells_say_why() -> None:
    short = ModelConfig(96, 32, 64, 4, 8, 8, 8)
    cell = one("ddp-naive", 2, Variant("plain"), short)
    assert isinstance(cell, Cell)
    assert cell.config.data.sequence_length == 8
    reason = one("pp-gpipe", 8, Variant("plain"))
    assert isinstance(reason, str)
    assert reason.startswith("world 8, frog pp-gpipe: num_hidden_layers=4 is less than 8 stages")


def test_strategy_in_a_file_has_a_cell_in_every_world_and_variant() -> None:
    file = "config/own_ddp.py"
    found = list(own_cells(SMALL_MODEL, [1, 3], DEFAULT_VARIANTS, file))
    assert [(cell.world_size, cell.variant.name) for cell in found if isinstance(cell, Cell)] == [
        (size, variant.name) for size in (1, 3) for variant in DEFAULT_VARIANTS
    ]
    for cell in found:
        assert isinstance(cell, Cell)
        assert (cell.strategy, cell.implementation) == (StrategyConfig(file=file).entry.name, "frog")
        assert cell.config.strategy.file == file
