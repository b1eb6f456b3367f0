"""`frog check`: run any program, and compare what its ranks compute."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.user_input import at_least
from frog.launch.launch_commands import add_gpus_argument, add_world_arguments, read_world, run_checked


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
    parser.add_argument("--run", metavar="RUN", help="answer from the records of an earlier run instead")
    parser.add_argument("--json", action="store_true", help="print the answers as one JSON object")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="-- my.py ..., or another command, as for frog run"
    )
    parser.set_defaults(handler=_check)


def _check(args: argparse.Namespace) -> int:
    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if args.run is not None:
        from frog.core.runs.folder import find_evidence

        if program:
            raise UsageError("--run reads an earlier run, so no program is started", "omit --run, or the program")
        return print_answers(find_evidence(args.run).path, args.json)
    if not program:
        raise UsageError("check needs a program", "frog check --nproc 2 -- my.py")
    nodes, options = read_world(args)
    options = replace(options, runs=Path("runs"), simulate_gpus=args.simulate_gpus)
    return run_checked(nodes, program, options, args.every, lambda folder: print_answers(folder, args.json))


def print_answers(folder: Path, as_json: bool = False) -> int:
    """Print what the rules say about a run; return 1 if one is broken, certainly or likely."""
    from frog.core.terminal import terminal_columns, wrapped_lines
    from frog.observe.check.answers import answers_as_json, answers_of, page
    from frog.observe.check.rank_records import read_records

    records = read_records(folder)
    answers = answers_of(records)
    if as_json:
        print(json.dumps({"run": str(folder), "rules": answers_as_json(answers)}, indent=2))
    else:
        print(wrapped_lines(page(str(folder), records, answers), terminal_columns()))
    return int(any(answer.is_alarm for answer in answers))
