"""`frog check`: run any program, and compare what its ranks compute."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.errors import UsageError
from frog.core.files import write_json
from frog.core.user_input import at_least
from frog.launch.launch_commands import add_gpus_argument, add_world_arguments, read_world, run_checked

if TYPE_CHECKING:
    from frog.launch.node_agents import Options
    from frog.launch.nodes import Nodes


def add_check_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog check`."""
    parser = commands.add_parser(
        "check",
        help="run your program and compare the ranks' samples, gradients and weights",
        description="Run any training program and apply rules that hold for every correct run: equal weights and "
        "gradients on replicas, samples of its own for each rank, cleared gradients, restored optimizers and others. "
        "The program is not changed. Exit code 1: a rule is broken, certainly or likely.",
    )
    add_world_arguments(parser)
    add_gpus_argument(parser)
    parser.add_argument(
        "--every",
        type=at_least(1),
        default=1,
        metavar="K",
        help="read the tensors in the first three steps and in every K-th (default: 1, all)",
    )
    parser.add_argument(
        "--against-one",
        action="store_true",
        help="also run the program on one rank, and name the first tensor that differs; {...} in an argument is "
        "computed from `world`, the number of ranks: --batch-size {32/world}",
    )
    parser.add_argument("--run", metavar="RUN", help="answer from the records of an earlier run instead")
    parser.add_argument(
        "--after",
        metavar="RUN",
        help="the checked run that saved the checkpoint from which this one resumes: compare their samples too",
    )
    parser.add_argument("--json", action="store_true", help="print the answers as one JSON object")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="-- my.py ..., or another command, as for frog run"
    )
    parser.set_defaults(handler=_check)


def _check(args: argparse.Namespace) -> int:
    from frog.core.runs.folder import find_evidence

    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if args.after is not None and args.against_one:
        raise UsageError("--after compares with an earlier run, --against-one with one rank", "omit one of them")
    after = find_evidence(args.after).path if args.after is not None else None
    if args.run is not None:
        if program:
            raise UsageError("--run reads an earlier run, so no program is started", "omit --run, or the program")
        return print_answers(find_evidence(args.run).path, args.json, after)
    if not program:
        raise UsageError("check needs a program", "frog check --nproc 2 -- my.py")
    nodes, options = read_world(args)
    options = replace(options, runs=Path("runs"), simulate_gpus=args.simulate_gpus)
    if args.against_one:
        return _check_against_one(nodes, program, options, args.every, args.json)
    return run_checked(nodes, program, options, args.every, lambda folder: print_answers(folder, args.json, after))


def _check_against_one(nodes: Nodes, program: list[str], options: Options, every: int, as_json: bool) -> int:
    """Run a program on its ranks, then twice on one, and print what differs."""
    from frog.launch.nodes import Nodes
    from frog.observe.check.against_one import AGAINST
    from frog.observe.check.program_arguments import arguments_alone, arguments_for, require_batch_size

    num_ranks = nodes.most * nodes.ranks
    if num_ranks < 2:
        raise UsageError("--against-one compares several ranks with one", "--nproc 2")
    require_batch_size(program, num_ranks)
    alone = Nodes(1, 1, 1), arguments_alone(program)  # before the first run: a mistake in them is an error at once
    runs = {
        "many": (nodes, arguments_for(program, num_ranks), f"{num_ranks} ranks"),
        "one": (*alone, "1 rank"),
        "rounded": (*alone, "1 rank, its weights changed as much as rounding may change a result"),
    }
    folders: dict[str, Path] = {}
    for name, (world, own_program, words) in runs.items():
        print(f"run {len(folders) + 1} of 3: {words}", file=sys.stderr)
        asked = replace(options, extra_env={**options.extra_env, "FROG_CHECK_MODULES": name})

        def keep(folder: Path, name: str = name) -> int:
            folders[name] = folder
            return 0

        if code := run_checked(world, own_program, asked, every, keep):
            print(f"frog check: the program ended with {code} on {words}, so nothing was compared", file=sys.stderr)
            return code
    write_json(folders["many"] / AGAINST, {name: str(folder.resolve()) for name, folder in folders.items()})
    return print_answers(folders["many"], as_json)


def print_answers(folder: Path, as_json: bool = False, after: Path | None = None) -> int:
    """Print what the rules say about a run; return 1 if one is broken, certainly or likely.

    after: the folder of the run whose checkpoint it resumed from.
    """
    from frog.core.terminal import terminal_columns, wrapped_lines
    from frog.observe.check.answers import answers_as_json, page, read_answers

    checked = read_answers(folder, after=after)
    if as_json:
        print(json.dumps({"run": str(folder), "rules": answers_as_json(checked.answers)}, indent=2))
    else:
        print(wrapped_lines(page(str(folder), checked.records, checked.answers, checked.note), terminal_columns()))
    return int(any(answer.is_alarm for answer in checked.answers))
