"""`frog prove`: which cells of the matrix to prove, in which worlds, and the table of what came out.

A cell is a strategy in a world with a variant of the batch. The ranks of `frog.prove.rank` do the proving.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frog.config import DataConfig, ModelConfig, RunConfig, StrategyConfig, TrainConfig, load_model_config, to_dict
from frog.core.errors import UsageError
from frog.core.files import write_json
from frog.launch.start import Options
from frog.launch.world import run_world

SMALL_MODEL = ModelConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=32,
)
"""What is proved if the user names no model: every strategy fits it."""

_SMALL_BUCKET_MB = 0.02
"""Several buckets in the small model, so that their borders are proved too."""

FROM_SCRATCH: dict[str, dict[str, Any]] = {
    "ddp-naive": {"reduction": "naive"},
    "ddp-bucketed": {"reduction": "bucketed", "bucket_mb": _SMALL_BUCKET_MB},
    "ddp-overlapped": {"reduction": "overlapped", "bucket_mb": _SMALL_BUCKET_MB},
    "zero1": {"name": "zero1"},
    "zero2": {"name": "zero2"},
    "zero3": {"name": "zero3"},
    "tp": {"tp": "all", "sequence_parallel": False},
    "tp+sp": {"tp": "all"},
    "pp-gpipe": {"pp": "all", "schedule": "gpipe"},
    "pp-1f1b": {"pp": "all", "schedule": "1f1b"},
    "pp-interleaved": {"pp": 2, "schedule": "interleaved"},
    "pp-zero-bubble": {"pp": "all", "schedule": "zero_bubble"},
    "cp": {"cp": "all"},
    "ep": {"ep": "all"},
    "dp x tp": {"tp": 2},
    "dp x pp": {"pp": 2},
    "tp x pp": {"tp": 2, "pp": 2},
    "dp x tp x pp": {"tp": 2, "pp": 2, "dp": 2},
    "dp x cp": {"cp": 2},
    "dp x ep": {"ep": 2},
    "zero1 x pp": {"name": "zero1", "pp": 2},
    "zero3 x tp": {"name": "zero3", "tp": 2},
    "zero3 x cp": {"name": "zero3", "cp": 2},
    "hybrid zero1": {"name": "zero1", "shard": 2},
    "hybrid zero2": {"name": "zero2", "shard": 2},
    "hybrid zero3": {"name": "zero3", "shard": 2},
}
"""The strategies by the names that `--strategy` takes. "all" is the whole world; products need 4 ranks or more."""

_OURS_ALONE = {
    *("ddp-naive", "ddp-bucketed", "ddp-overlapped"),
    *("cp", "ep", "dp x cp", "dp x ep", "zero3 x cp", "zero1 x pp"),
}
"""What torch has in one form only, or not at all."""

NATIVE: dict[str, dict[str, dict[str, Any]]] = {
    "torch": {"ddp": {"bucket_mb": _SMALL_BUCKET_MB}}
    | {name: fields for name, fields in FROM_SCRATCH.items() if name not in _OURS_ALONE},
    "deepspeed": {name: {"name": name} for name in ("zero1", "zero2", "zero3")},
}


@dataclass(frozen=True)
class Variant:
    """How a batch, a model or its numbers differ from the plainest case."""

    name: str
    flip_tying: bool = False
    frozen: bool = False
    uneven: bool = False
    accumulate: bool = False
    precision: str = "fp32"
    recompute: bool = False


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
    Variant("bf16", precision="bf16"),
)


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    strategy: str
    implementation: str
    world_size: int
    variant: Variant
    config: RunConfig

    def table(self, number: int) -> dict[str, Any]:
        """What `frog.prove.rank` reads."""
        return {
            "name": str(number),
            "config": to_dict(self.config),
            "frozen": self.variant.frozen,
            "uneven": self.variant.uneven,
        }


def cells(
    model: ModelConfig,
    world_sizes: Sequence[int],
    implementations: Sequence[str],
    variants: Sequence[Variant],
    only: Sequence[str] = (),
) -> Iterator[Cell | str]:
    """Every cell of the matrix; for one that cannot be, why."""
    for world_size in world_sizes:
        for implementation in implementations:
            known = FROM_SCRATCH if implementation == "frog" else NATIVE[implementation]
            for name, fields in known.items():
                if (only and name not in only) or not _fits(fields, world_size):
                    continue
                for variant in variants:
                    yield _cell(model, name, implementation, world_size, variant, fields)


def _fits(fields: dict[str, Any], world_size: int) -> bool:
    """Whether a strategy is another one in this world: products need 4 ranks, and alone there is nothing to split."""
    sizes = [size for axis in ("tp", "pp", "cp", "ep", "shard", "dp") if isinstance(size := fields.get(axis), int)]
    if "all" in fields.values():
        return world_size > 1
    if fields.get("schedule") == "interleaved":
        return world_size == 2
    product = 1
    for size in sizes:
        product *= size
    return world_size % product == 0 and (not sizes or world_size >= max(4, product))


def _cell(
    model: ModelConfig, name: str, implementation: str, world_size: int, variant: Variant, fields: dict[str, Any]
) -> Cell | str:
    own = {key: world_size if value == "all" else value for key, value in fields.items() if key != "dp"}
    strategy = StrategyConfig(implementation=implementation, **own)  # type: ignore[arg-type]
    tied = model.tie_word_embeddings != variant.flip_tying
    model = replace(model, tie_word_embeddings=tied)
    if strategy.ep > 1 and model.num_local_experts is None:
        model = replace(model, num_local_experts=4)
    if model.num_local_experts is not None:  # ranks with fewer labels would weigh the routers' loss otherwise
        variant = replace(variant, name=variant.name.replace(", uneven", ""), uneven=False)
    if model.num_local_experts is not None and variant.precision == "bf16":
        return f"{name}, bf16: rounding sends some tokens to other experts, so there is nothing to be equal to"
    accum = max(4 if strategy.pp > 1 else 1, 2 if variant.accumulate else 1)
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
    )
    problems = config.problems() + config.world_problems(world_size)
    if problems:
        return f"world {world_size}, {implementation} {name}: {problems[0]}"
    return Cell(name, implementation, world_size, variant, config)


def prove(chosen: Sequence[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Prove cells, world by world; give each with its result. Raises LaunchError if a world fails."""
    for world_size in sorted({cell.world_size for cell in chosen}):
        here = [cell for cell in chosen if cell.world_size == world_size]
        with tempfile.TemporaryDirectory(prefix="frog-proof-") as scratch:
            cases, results = Path(scratch) / "cases.json", Path(scratch) / "results.json"
            write_json(cases, [cell.table(number) for number, cell in enumerate(here)])
            run_world(world_size, ["prove", str(cases), str(results)], Options(threads=1))
            found = {int(result["name"]): result for result in json.loads(results.read_text())}
        yield from ((cell, found[number]) for number, cell in enumerate(here))


def run_proof(args: argparse.Namespace) -> int:
    """`frog prove`: exit code 1 if anything differs."""
    args.world = args.world or [1, 2, 4]
    implementations = list(NATIVE) if args.implementation == "all" else [args.implementation]
    if args.implementation == "all":
        implementations = ["frog", *implementations]
    names = {name for kind in implementations for name in (FROM_SCRATCH if kind == "frog" else NATIVE[kind])}
    if unknown := sorted(set(args.strategy) - names):
        raise UsageError(f"--strategy {unknown[0]}: unknown", f"one of: {', '.join(sorted(names))}")
    if any(size < 1 for size in args.world):
        raise UsageError(f"--world {min(args.world)}: a world has at least one rank")
    model = load_model_config(args.model) if args.model else SMALL_MODEL
    variants = ALL_VARIANTS if args.full else DEFAULT_VARIANTS
    wanted = list(cells(model, args.world, implementations, variants, args.strategy))
    chosen = [cell for cell in wanted if isinstance(cell, Cell)]
    if not chosen:
        reasons = "\n".join(f"  - {reason}" for reason in wanted if isinstance(reason, str))
        raise UsageError(f"nothing to prove\n{reasons}".rstrip(), "other --strategy, --world or --model")
    return _report(model, wanted, chosen, args.json)


def _report(model: ModelConfig, wanted: Sequence[Cell | str], chosen: Sequence[Cell], as_json: bool) -> int:
    start = time.monotonic()
    rows: list[dict[str, Any]] = []
    if not as_json:
        print(
            f"{len(chosen)} proofs against one process, 5 steps each: {model.num_hidden_layers} layers, width "
            f"{model.hidden_size}, vocabulary {model.vocab_size}.\n"
            "Numbers are differences: the largest in a tensor, over the tensor's largest value."
        )
        print(_line(["world", "strategy", "by", "loss", "gradient", "weight", "", "variant"]))
    for cell, result in prove(chosen):
        rows.append(
            {"strategy": cell.strategy, "implementation": cell.implementation, "world": cell.world_size}
            | {"variant": cell.variant.name}
            | result
        )
        if not as_json:
            numbers = [f"{result[key]:.0e}" if key in result else "-" for key in ("loss", "gradient", "weight")]
            verdict = "bitwise" if result.get("bitwise") else "equal" if result["equal"] else "DIFFERS"
            print(
                _line([str(cell.world_size), cell.strategy, cell.implementation, *numbers, verdict, cell.variant.name])
            )
            if not result["equal"]:
                print(f"      {result['first']}")
    equal = sum(row["equal"] for row in rows)
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0 if equal == len(rows) else 1
    for reason in sorted({reason for reason in wanted if isinstance(reason, str)}):
        print(f"not possible: {reason}")
    print(f"{equal} of {len(rows)} equal one process, in {time.monotonic() - start:.0f} s")
    return 0 if equal == len(rows) else 1


def _line(words: Sequence[str]) -> str:
    widths = (5, 15, 9, 7, 8, 7, 8, 0)
    return " ".join(word.ljust(width) for word, width in zip(words, widths, strict=True)).rstrip()


def add_proof_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`frog prove`."""
    parser = commands.add_parser(
        "prove",
        help="prove that strategies compute what one process computes",
        description="Train five steps under each strategy, with real processes, and compare losses, gradients and "
        "weights with those of one process. Ranks start from different weights, of which rank 0's must win.",
    )
    parser.add_argument("--model", type=Path, metavar="config.json", help="your model; default: a small one")
    parser.add_argument("--strategy", action="append", default=[], metavar="NAME", help="only this one; repeatable")
    parser.add_argument(
        "--world", type=int, action="append", metavar="N", help="in a world of N; repeatable; default: 1, 2 and 4"
    )
    parser.add_argument("--implementation", choices=["frog", *NATIVE, "all"], default="frog")
    parser.add_argument("--full", action="store_true", help="every variant by itself, recomputed and bf16 too")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.set_defaults(handler=run_proof)
