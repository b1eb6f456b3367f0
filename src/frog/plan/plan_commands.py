"""`frog strategies`: compare the strategies by formula. Imports happen when the command runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.user_input import at_least

if TYPE_CHECKING:
    from rich.table import Table

    from frog.core.config import RunConfig
    from frog.plan.strategies import Row

_SEQUENCES_A_RANK = 4

_TABLE_WIDTH = 160

_LEGEND = """\
memory      in float32, on the rank that holds most; activations at their peak
temporary   gathered layers of zero2 and zero3 while they compute; recomputed or deferred tensors
micro       micro-batches, which a pipeline needs: the same batch in smaller parts, so it holds less at a time
sent        bytes that leave the rank that sends most in one step, by ring algorithms; messages: number of collectives
            (diloco: the mean over a round of inner_steps steps, and the messages of its last step)
bubble      fraction of the time in which a pipeline's ranks wait for each other, if all stages take the same time"""


def add_plan_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `strategies`; it sets `handler`, which takes the arguments."""
    strategies = commands.add_parser(
        "strategies",
        help="compare the strategies for a model and a world: memory, traffic, bubble",
        description="Memory and traffic of each strategy in one step, by formula. Runs nothing.",
    )
    strategies.add_argument(
        "--model",
        type=Path,
        default=Path("config/config.json"),
        metavar="FILE",
        help="a config.json, or a run file (.toml) with its batch; default: config/config.json",
    )
    strategies.add_argument("--world", type=at_least(1), default=8, metavar="N", help="number of ranks; default: 8")
    strategies.add_argument("--sequence-length", type=int, metavar="N", help="default: the file's, or all positions")
    strategies.add_argument(
        "--global-batch",
        type=int,
        metavar="N",
        help=f"sequences per step; default: the file's, or {_SEQUENCES_A_RANK} per rank",
    )
    strategies.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    strategies.set_defaults(handler=_strategies)


def _strategies(args: argparse.Namespace) -> int:
    from frog.plan.strategies import compare_strategies

    config, notes = _config(args)
    rows = compare_strategies(config, args.world)
    if args.json:
        _print_json(config, args.world, rows)
    else:
        _print_comparison(config, args.world, rows)
        print("".join(f"\nnot in these numbers: {note}" for note in notes), end="\n" if notes else "")
    return 0


def _config(args: argparse.Namespace) -> tuple[RunConfig, list[str]]:
    """Return the model and batch for the comparison, and what the formulas leave out of another model.

    Raises:  ConfigError if the file or the sizes are invalid.
    """
    from frog.core.config import DataConfig, RunConfig, TrainConfig, load_model_sizes, load_run_config
    from frog.core.errors import ConfigError

    length, batch = args.sequence_length, args.global_batch
    if args.model.suffix == ".toml":
        requested = {"data.sequence_length": length, "train.global_batch_size": batch}
        given = [f"{key}={value}" for key, value in requested.items() if value is not None]
        run = load_run_config(args.model, given)
        own = run.strategy.entry
        return run, [] if own.has_formulas else [f"{own.name}, the run's strategy: no formula knows it"]
    model, notes = load_model_sizes(args.model)
    config = RunConfig(
        model=model,
        data=DataConfig(sequence_length=model.max_position_embeddings if length is None else length),
        train=TrainConfig(global_batch_size=_SEQUENCES_A_RANK * args.world if batch is None else batch),
    )
    if problems := config.problems():
        raise ConfigError("\n".join(problems), "change --sequence-length or --global-batch")
    return config, notes


def _print_json(config: RunConfig, world: int, rows: list[Row]) -> None:
    import json

    content = {
        "num_parameters": config.model.num_parameters(),
        "world_size": world,
        "sequence_length": config.data.sequence_length,
        "global_batch_size": config.train.global_batch_size,
        "strategies": [row.as_dict() for row in rows],
    }
    print(json.dumps(content, indent=2))


def _print_comparison(config: RunConfig, world: int, rows: list[Row]) -> None:

    from frog.core.console import console
    from frog.core.units import format_count

    screen = console()
    # Print the table at its full width: a narrow terminal wraps its lines, which loses less than truncated cells.
    screen.width = max(screen.width, _TABLE_WIDTH)
    screen.print(
        f"{format_count(config.model.num_parameters())} parameters, {world} rank{'s' if world > 1 else ''}, "
        f"a step of {config.train.global_batch_size} x {config.data.sequence_length} tokens\n"
    )
    screen.print(_table(rows))
    screen.print("\n" + _LEGEND, style="dim")
    if impossible := [row for row in rows if row.problems]:
        screen.print("\nnot possible: why", style="bold")
        for row in impossible:
            for problem in row.problems:
                screen.print(f"  {row.name}: {problem}", soft_wrap=True)
    screen.print("\nwhen to use it", style="bold")
    for row in {row.kind: row for row in rows if "+" not in row.kind}.values():
        screen.print(f"  {row.name.partition(',')[0] if row.kind == 'pp' else row.name}: {row.use}", soft_wrap=True)
    if any("+" in row.kind for row in rows):
        screen.print("  a product (x): if the reasons of all its parts apply")


def _table(rows: list[Row]) -> Table:
    from rich.table import Table

    from frog.core.units import format_bytes

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("strategy", no_wrap=True)
    table.add_column("mesh", no_wrap=True)
    numbers = ("parameters", "gradients", "optimizer", "activations", "temporary", "memory", "sent a step", "messages")
    for name in (*numbers, "bubble"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        mesh = " x ".join(f"{name} {size}" for name, size in row.mesh.items() if size > 1) or "one rank"
        if row.memory is None:
            table.add_row(row.name, mesh, "not possible", style="dim")
            continue
        memory = row.memory
        parts = (memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.passing)
        table.add_row(
            row.name,
            mesh + (f", {row.num_micro} micro" if row.num_micro > 1 else ""),
            *(format_bytes(part) if part else "-" for part in parts),
            format_bytes(memory.total),
            format_bytes(row.sent_bytes) if row.sent_bytes else "-",
            str(row.num_messages) if row.num_messages else "-",
            "-" if row.bubble is None else f"{row.bubble:.0%}",
        )
    return table
