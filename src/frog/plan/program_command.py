"""`frog plan --cluster NAME -- PROGRAM.py` plans a user's own program. Imports happen when the command runs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.core.user_input import at_least

if TYPE_CHECKING:
    from frog.plan.estimate.hardware import Cluster

NAME = "PROGRAM"
"""The name of the action; users type `frog plan OPTIONS -- my.py` without it."""


def add_program_parser(plan: argparse.ArgumentParser, actions: argparse._SubParsersAction[Any]) -> None:
    """Add `frog plan OPTIONS -- PROGRAM.py ARGUMENTS`: what follows `--` are the program, or -m and a module, and its
    arguments.
    """
    parser = actions.add_parser(
        NAME,
        help="plan your own training program: frog plan --cluster h100x8 --nodes 8 -- my.py ARGUMENTS",
        description="Run your CUDA program with tensors without memory, and print what a cluster would do: "
        "docs/plan/program.md. It needs no GPU.",
        usage="frog plan --cluster NAME [--nodes N] [options] -- PROGRAM.py | -m MODULE [arguments]",
    )
    parser.add_argument("--cluster", required=True, metavar="NAME", help="such as h100x8, or your own file PATH.toml")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--nodes", type=at_least(1), default=1, metavar="N", help="number of nodes; default: 1")
    size.add_argument("--gpus", type=at_least(1), metavar="N", help="number of GPUs: some of one node, or whole nodes")
    parser.add_argument(
        "--rank",
        type=at_least(0),
        default=0,
        metavar="N",
        help="the rank to run, next to those that it exchanges messages with; default: 0",
    )
    parser.add_argument(
        "--steps", type=at_least(1), default=2, metavar="N", help="optimizer steps; the last is planned; default: 2"
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="also write the step as a run folder, for frog report")
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes and seconds")
    parser.set_defaults(handler=_plan_program)
    original = plan.parse_known_args

    def parse(args: Any = None, namespace: Any = None) -> Any:
        if not args or not args[0].startswith("-") or "--" not in args:
            return original(args, namespace)
        split = args.index("--")
        arguments, rest = original([NAME, *args[:split]], namespace)
        arguments.program = args[split + 1 :]
        return arguments, rest

    plan.parse_known_args = parse  # type: ignore[method-assign]


def _plan_program(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.core.units import count
    from frog.plan.program.program_folder import write_program_folder
    from frog.plan.program.program_process import Request, record_program
    from frog.plan.program.program_text import ProgramPlan, program_json, program_lines

    program, is_module = _named_program(args)
    cluster, nodes = _world_of(args)
    if args.rank >= nodes * cluster.gpus_per_node:
        raise UsageError(f"--rank {args.rank}: the world has {nodes * cluster.gpus_per_node} ranks")
    if args.to is not None and args.to.exists():
        raise UsageError(f"--to {args.to}: already exists", "choose another folder")
    request = Request(program[0], program[1:], cluster, nodes, args.rank, args.steps, is_module)
    world = count(request.nodes * cluster.gpus_per_node, "simulated GPU")
    print(f"{program[0]} runs as rank {args.rank} of {world}; its output:", file=sys.stderr, flush=True)
    plan = ProgramPlan(record_program(request), program[0], args.cluster, cluster, nodes, args.rank)
    if args.json:
        print(program_json(plan))
    else:
        sys.stdout.write("\n".join(program_lines(plan)) + "\n")
    if args.to is not None:
        write_program_folder(args.to, plan, ["frog", *sys.argv[1:]])
        print(f"\nplanned step: {args.to}\n  try: frog report {args.to}", file=sys.stderr)
    return 0


def _named_program(args: argparse.Namespace) -> tuple[list[str], bool]:
    """Return the program with its arguments, and whether it is a module.

    Raises:  UsageError if there is none.
    """
    from frog.core.errors import UsageError

    program: list[str] = getattr(args, "program", [])
    if program[:1] == ["-m"] and len(program) > 1:
        return program[1:], True
    if not program or program[0] == "-m":
        raise UsageError("no program after --", "frog plan --cluster h100x8 -- my.py")
    if not Path(program[0]).is_file():
        raise UsageError(f"{program[0]}: no such program", "name a Python file after --, or -m and a module")
    return program, False


def _world_of(args: argparse.Namespace) -> tuple[Cluster, int]:
    """Return the cluster, with the GPUs of a node that are used, and the number of nodes.

    Raises:  UsageError if the GPUs do not fill the last node.
    """
    from frog.core.errors import UsageError
    from frog.plan.estimate.hardware import find_cluster

    cluster = find_cluster(args.cluster)
    if args.gpus is None:
        return cluster, args.nodes
    if args.gpus <= cluster.gpus_per_node:
        return replace(cluster, gpus_per_node=args.gpus), 1
    nodes, rest = divmod(args.gpus, cluster.gpus_per_node)
    if rest:
        raise UsageError(
            f"--gpus {args.gpus}: does not fill its last node: {args.cluster} has {cluster.gpus_per_node} GPUs in each"
        )
    return cluster, nodes
