"""The cells to prove, derived from the strategies' entries: a strategy in a world with a variant of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frog.core.config import DataConfig, ModelConfig, OptimizerConfig, RunConfig, StrategyConfig, TrainConfig, to_dict
from frog.core.config.optimizers import OPTIMIZERS
from frog.core.config.strategies import AXES, DATA_STRATEGIES, PROOF_BUCKET_MB, WHOLE_WORLD
from frog.core.config.strategy import implementation_problems
from frog.train.prove.prove_files import CaseFields

SMALL_MODEL = ModelConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=32,
)
"""The model of the proofs if the user names none: every strategy fits it."""

_ACCUM = 4
"""Micro-batches of a pipeline."""

IMPLEMENTATIONS = ("frog", "torch", "deepspeed")

Fields = Mapping[str, Any]
"""Fields of [strategy]; a size is a number or the whole world."""

PRODUCTS: dict[str, Fields] = {
    "dp x tp": {"tp": 2},
    "dp x pp": {"pp": 2},
    "tp x pp": {"tp": 2, "pp": 2},
    "dp x tp x pp": {"tp": 2, "pp": 2, "dp": 2},
    "dp x cp": {"cp": 2},
    "dp x ep": {"ep": 2},
    "zero1 x pp": {"name": "zero1", "pp": 2},
    "zero3 x tp": {"name": "zero3", "tp": 2},
    "zero3 x cp": {"name": "zero3", "cp": 2},
    "zero2 x ep": {"name": "zero2", "ep": 2},
    "zero3 x ep": {"name": "zero3", "ep": 2},
}
"""Products of strategies; they need 4 ranks or more."""


def proofs(implementation: str = "frog") -> dict[str, Fields]:
    """Return all strategies of an implementation, by the names that `--strategy` takes."""
    settings: dict[str, Fields] = {}
    for name, entry in DATA_STRATEGIES.items():
        if implementation == "frog":
            settings |= entry.proofs or {name: {"name": name}}
        else:
            settings[name] = {"name": name, "bucket_mb": PROOF_BUCKET_MB}
    for axis in AXES.values():
        settings |= axis.proofs
    settings |= PRODUCTS
    settings |= {
        f"hybrid {name}": {"name": name, "shard": 2} for name, entry in DATA_STRATEGIES.items() if entry.splits
    }
    return {name: fields for name, fields in settings.items() if _has(implementation, fields)}


def _has(implementation: str, fields: Fields) -> bool:
    strategy = _strategy(implementation, fields, world_size=2)
    return not implementation_problems(strategy, SMALL_MODEL, grad_accum=_ACCUM)


def _strategy(implementation: str, fields: Fields, world_size: int) -> StrategyConfig:
    own = {key: world_size if value == WHOLE_WORLD else value for key, value in fields.items() if key != "dp"}
    return StrategyConfig(implementation=implementation, **own)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Variant:
    """A difference of a batch, a model or its numbers from the plain case."""

    name: str
    flip_tying: bool = False
    frozen: bool = False
    uneven: bool = False
    accumulate: bool = False
    precision: str = "fp32"
    recompute: bool = False
    optimizer: str = "adamw"
    qk_norm: bool = False


DEFAULT_VARIANTS = (
    Variant("plain"),
    Variant("accumulated, other tying, frozen, uneven", flip_tying=True, frozen=True, uneven=True, accumulate=True),
)
ALL_VARIANTS = (
    *DEFAULT_VARIANTS,
    Variant("accumulated", accumulate=True),
    Variant("other tying", flip_tying=True),
    Variant("frozen", frozen=True),
    Variant("uneven", uneven=True),
    Variant("recomputed activations", recompute=True, accumulate=True),
    Variant("QK norm", qk_norm=True, accumulate=True),
    Variant("bf16", precision="bf16"),
    *(Variant(name, optimizer=name) for name in OPTIMIZERS if name != "adamw"),
)


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    strategy: str
    implementation: str
    world_size: int
    variant: Variant
    config: RunConfig

    def fields(self, number: int) -> CaseFields:
        """Return the fields that `frog.train.prove.prove_rank` reads."""
        return CaseFields(
            name=str(number), config=to_dict(self.config), frozen=self.variant.frozen, uneven=self.variant.uneven
        )


def cells(
    model: ModelConfig,
    world_sizes: Sequence[int],
    implementations: Sequence[str],
    variants: Sequence[Variant],
    only: Sequence[str] = (),
) -> Iterator[Cell | str]:
    """Yield every cell of the matrix, or the reason why it is not possible."""
    for world_size in world_sizes:
        for implementation in implementations:
            for name, fields in proofs(implementation).items():
                if (only and name not in only) or not _fits(fields, world_size):
                    continue
                for variant in variants:
                    yield _cell(model, name, implementation, world_size, variant, fields)


def _fits(fields: Fields, world_size: int) -> bool:
    """True if a strategy is distinct in this world: products need 4 ranks, and one rank has nothing to split."""
    sizes = [fields[axis] for axis in ("tp", "pp", "cp", "ep", "shard", "dp") if isinstance(fields.get(axis), int)]
    if WHOLE_WORLD in fields.values():
        return world_size > 1
    if fields.get("schedule") == "interleaved":
        return world_size == 2
    product = 1
    for size in sizes:
        product *= size
    return world_size % product == 0 and (not sizes or world_size >= max(4, product))


def own_cells(
    model: ModelConfig, world_sizes: Sequence[int], variants: Sequence[Variant], file: str
) -> Iterator[Cell | str]:
    """Yield the cells of the strategy in a file, in every world."""
    fields = {"file": file}
    name = StrategyConfig(file=file).entry.name
    for world_size in world_sizes:
        for variant in variants:
            yield _cell(model, name, "frog", world_size, variant, fields)


def _cell(
    model: ModelConfig, name: str, implementation: str, world_size: int, variant: Variant, fields: Fields
) -> Cell | str:
    strategy = _strategy(implementation, fields, world_size)
    tied = model.tie_word_embeddings != variant.flip_tying
    qk_norm = model.qk_norm or (variant.qk_norm and model.num_local_experts is None)
    model = replace(model, tie_word_embeddings=tied, qk_norm=qk_norm and strategy.ep == 1)
    if strategy.ep > 1 and model.num_local_experts is None:
        model = replace(model, num_local_experts=4)
    if model.num_local_experts is not None:  # ranks with fewer labels would give the routers' loss a different weight
        variant = replace(variant, name=variant.name.replace(", uneven", ""), uneven=False)
    if model.num_local_experts is not None and variant.precision == "bf16":
        return f"{name}, bf16: rounding sends some tokens to other experts, so no oracle equals it"
    accum = max(_ACCUM if strategy.pp > 1 else 1, 2 if variant.accumulate else 1)
    config = RunConfig(
        model=model,
        data=DataConfig(sequence_length=min(16, model.max_position_embeddings)),
        train=TrainConfig(
            global_batch_size=4 * accum * strategy.dp_size(world_size) // (2 if accum > 1 else 1),
            grad_accum=accum,
            precision=variant.precision,  # type: ignore[arg-type]
            activation_checkpointing=variant.recompute,
        ),
        strategy=strategy,
        optimizer=OptimizerConfig(variant.optimizer),
    )
    problems = config.problems() + config.world_problems(world_size)
    if problems:
        return f"world {world_size}, {implementation} {name}: {problems[0]}"
    return Cell(name, implementation, world_size, variant, config)
