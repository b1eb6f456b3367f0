"""`frog prove`: prove cells of the matrix, world by world, and print the results. `prove_rank.py` does it."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from frog.core.config import ModelConfig, load_model_config
from frog.core.config.own_strategy import file_problem
from frog.core.errors import ConfigError, UsageError
from frog.core.files import write_json
from frog.core.user_input import at_least
from frog.launch.node_agents import Options
from frog.launch.world import run_world
from frog.train.prove.matrix import (
    ALL_VARIANTS,
    DEFAULT_VARIANTS,
    IMPLEMENTATIONS,
    SMALL_MODEL,
    Cell,
    cells,
    own_cells,
    proofs,
)
from frog.train.prove.prove_files import ProofResult, read_results


def prove(chosen: Sequence[Cell], backend: str = "auto") -> Iterator[tuple[Cell, ProofResult]]:
    """Prove cells, world by world; yield each with its result. Raises LaunchError if a world fails."""
    for world_size in sorted({cell.world_size for cell in chosen}):
        here = [cell for cell in chosen if cell.world_size == world_size]
        with tempfile.TemporaryDirectory(prefix="frog-proof-") as scratch:
            cases, results = Path(scratch) / "cases.json", Path(scratch) / "results.json"
            write_json(cases, [msgspec.structs.asdict(cell.fields(number)) for number, cell in enumerate(here)])
            run_world(world_size, ["prove", str(cases), str(results), backend], Options(threads=1))
            results_by_number = {int(result.name): result for result in read_results(results)}
        yield from ((cell, results_by_number[number]) for number, cell in enumerate(here))


def run_proof(args: argparse.Namespace) -> int:
    """Run `frog prove`: exit code 1 if anything differs."""
    args.world = args.world or [1, 2, 4]
    implementations = IMPLEMENTATIONS if args.implementation == "all" else (args.implementation,)
    names = {name for implementation in implementations for name in proofs(implementation)}
    if unknown := sorted(set(args.strategy) - names):
        raise UsageError(f"--strategy {unknown[0]}: unknown", f"one of: {', '.join(sorted(names))}")
    model = load_model_config(args.model) if args.model else SMALL_MODEL
    variants = ALL_VARIANTS if args.full else DEFAULT_VARIANTS
    file = _file_to_prove(args)
    if file is not None:
        wanted = list(own_cells(model, args.world, variants, file))
    else:
        wanted = list(cells(model, args.world, implementations, variants, args.strategy))
    chosen = [cell for cell in wanted if isinstance(cell, Cell)]
    if not chosen:
        reasons = "\n".join(f"  - {reason}" for reason in wanted if isinstance(reason, str))
        raise UsageError(f"nothing to prove\n{reasons}".rstrip(), "other --strategy, --world or --model")
    return _report(model, wanted, chosen, args)


def _file_to_prove(args: argparse.Namespace) -> str | None:
    """Return the file of a strategy of one's own, which --set names. Raises UsageError for any other setting."""
    if not args.set:
        return None
    first, *others = args.set
    key, _, value = first.partition("=")
    if others or key.strip() != "strategy.file" or args.strategy or args.implementation != "frog":
        raise UsageError(
            "--set names the one strategy to prove", "--set strategy.file=FILE, without --strategy and --implementation"
        )
    file: str = value.strip()
    if (problem := file_problem(file)) is not None:
        raise ConfigError(problem, "correct that file, or name another")
    return file


def _report(model: ModelConfig, wanted: Sequence[Cell | str], chosen: Sequence[Cell], args: argparse.Namespace) -> int:
    start, as_json = time.monotonic(), args.json
    rows: list[dict[str, Any]] = []
    if not as_json:
        print(
            f"{len(chosen)} proofs against one process, 5 steps each: {model.num_hidden_layers} layers, width "
            f"{model.hidden_size}, vocabulary {model.vocab_size}.\n"
            "Numbers are differences: the largest in a tensor, over the tensor's largest value."
        )
        print(_line(["world", "strategy", "by", "loss", "gradient", "weight", "", "variant"]))
    for cell, result in prove(chosen, args.backend):
        rows.append(
            {"strategy": cell.strategy, "implementation": cell.implementation, "world": cell.world_size}
            | {"variant": cell.variant.name}
            | msgspec.structs.asdict(result)
        )
        if not as_json:
            differences = (result.loss, result.gradient, result.weight)
            numbers = ["-" if difference is None else f"{difference:.0e}" for difference in differences]
            verdict = "DIFFERS"
            if result.bitwise or result.equal:
                verdict = "bitwise" if result.bitwise else "equal"
            print(
                _line([str(cell.world_size), cell.strategy, cell.implementation, *numbers, verdict, cell.variant.name])
            )
            if not result.equal:
                print(f"      {result.first}")
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
        "weights with those of one process. Ranks start from different weights, and rank 0's must replace the others.",
    )
    parser.add_argument("--model", type=Path, metavar="config.json", help="your model; default: a small one")
    parser.add_argument("--strategy", action="append", default=[], metavar="NAME", help="only this one; repeatable")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="strategy.file=FILE",
        help="prove a strategy of your own (docs/train/own-strategy.md)",
    )
    parser.add_argument(
        "--world",
        type=at_least(1),
        action="append",
        metavar="N",
        help="in a world of N ranks; repeatable; default: 1, 2 and 4",
    )
    parser.add_argument("--implementation", choices=[*IMPLEMENTATIONS, "all"], default="frog")
    parser.add_argument("--backend", choices=("gloo", "frog"), default="gloo", help="backend of the collectives")
    parser.add_argument("--full", action="store_true", help="every variant separately, including recomputed and bf16")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(handler=run_proof)
