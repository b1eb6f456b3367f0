"""`frog run`: start a world on this machine."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.errors import FrogError, UsageError
from frog.core.user_input import at_least, port

if TYPE_CHECKING:
    from frog.launch.node_agents import Options
    from frog.launch.nodes import Nodes


_LEAST_DEADLINE_S = 2.0
"""A shorter deadline would kill a healthy rank that is slow for a moment."""
CHECK_HOOKS = ("frog_observer", "frog_observer.checks")
CHECKED_PROGRAMS = ("train", "frog.train", "finetune", "frog.train.finetune")
"""Frog's programs that train, as a command names them or as modules."""
CHECK_EVERY = 50
"""Steps from one sampled step to the next: the sampled ones then cost less than 1 % of the run's time."""


def add_run_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog run`."""
    parser = commands.add_parser(
        "run",
        help="start several ranks, or several simulated nodes, on this machine",
        description="Start a world with torchrun: frog run --nproc 4 -- train config/demo.toml, or -- my.py for your "
        "own program",
    )
    add_world_arguments(parser)
    add_gpus_argument(parser)
    parser.add_argument(
        "--no-observe",
        dest="observe",
        action="store_false",
        help="do not record what the ranks of a program other than Frog's are doing",
    )
    parser.add_argument(
        "--check",
        nargs="?",
        const=CHECK_EVERY,
        type=at_least(1),
        metavar="K",
        help="compare the ranks' numbers in the first steps and in every K-th (default: 50), as `frog check` does in "
        "each, and print what is wrong",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="show a live page of the run: each rank, what it waits for, the diagnosis; in a terminal until Ctrl-C",
    )
    parser.add_argument("--open", action="store_true", help="with --watch: open the page in the browser")
    parser.add_argument("--port", type=port, default=0, metavar="N", help="with --watch: default: a free port")
    parser.add_argument(
        "--from", dest="manifest", type=Path, metavar="K8S.yaml", help="run a manifest's pods as local processes"
    )
    parser.add_argument("--dry-run", action="store_true", help="with --from: only print the manifest's mistakes")
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="-- train RUN.toml ..., or any program: -- my.py ..., -- -m package ..., -- COMMAND ...",
    )
    parser.set_defaults(handler=_run)


def add_world_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that start and watch a world; `read_world` reads them."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--nproc", type=at_least(1), metavar="N", help="number of ranks, on one node")
    size.add_argument(
        "--nodes",
        metavar="NODESxRANKS",
        help="simulated nodes: 2x4 is two of four ranks each; 1:3x2 may shrink and grow",
    )
    parser.add_argument(
        "--threads", type=at_least(1), metavar="N", help="threads per rank; default: the cores divided by the ranks"
    )
    parser.add_argument(
        "--restarts",
        type=at_least(0),
        metavar="N",
        help="maximum restarts of a failed world from its last good checkpoint (default: 0; 3 if it may shrink)",
    )
    parser.add_argument(
        "--replace",
        type=at_least(0),
        default=0,
        metavar="N",
        help="maximum number of lost ranks to replace in a run with comm.on_loss=shrink (default: 0)",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        metavar="S",
        help="end a hanging world after this long without a sign of progress (default: 60; 300 while a rank of a "
        "program that is not Frog's waits outside a collective)",
    )
    parser.add_argument(
        "--network", metavar="LINK", help='simulate a slow network between the nodes: "rate=100mbit delay=20ms" (Linux)'
    )


def add_gpus_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--simulate-gpus`."""
    parser.add_argument(
        "--simulate-gpus",
        type=at_least(1),
        metavar="N",
        help="N simulated GPUs per node: a program for CUDA and NCCL runs on the CPU and gloo",
    )


def _run(args: argparse.Namespace) -> int:
    from frog.launch.program import merge_torchrun_options, parse_torchrun
    from frog.launch.world import run_world

    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if args.manifest is not None:
        from frog.hooks import check_manifest, run_manifest

        none = argparse.ArgumentParser()
        add_world_arguments(none)
        for option, default in vars(none.parse_args([])).items():
            if getattr(args, option) != default:
                raise UsageError(
                    f"--{option.replace('_', '-')} cannot be combined with --from: the manifest defines the world",
                    f"frog run --from {args.manifest}",
                )
        return check_manifest(args.manifest) if args.dry_run else run_manifest(args.manifest, program)
    if args.dry_run:
        raise UsageError("--dry-run: needs a manifest", "frog run --from k8s.yaml --dry-run")
    if (command := parse_torchrun(program)) is not None:
        merge_torchrun_options(command, args)
        program = list(command.program)
    nodes, options = read_world(args)
    options = replace(options, runs=Path("runs"), observe=args.observe, simulate_gpus=args.simulate_gpus)
    if not args.watch and (args.open or args.port):
        raise UsageError("--open and --port need --watch", "frog run --nproc 4 --watch -- my.py")
    if args.watch:
        from frog.hooks import watch_run

        if args.check is not None:
            raise UsageError("--watch cannot be combined with --check", "run one after the other")
        return watch_run(lambda show: run_world(nodes, program, replace(options, watch=show)), args.port, args.open)
    if args.check is not None:
        from frog.hooks import print_answers

        if not args.observe:
            raise UsageError("--check needs the observer", "omit --no-observe")
        return run_checked(nodes, program, options, args.check, print_answers)
    return run_world(nodes, program, options)


def run_checked(
    nodes: Nodes, program: Sequence[str], options: Options, every: int, answer: Callable[[Path], int]
) -> int:
    """Run a program whose ranks record their numbers, and return the exit code.

    every: steps from one whose tensors are read to the next. answer: prints what a run folder's numbers show, and
    returns 1 if they are wrong.
    """
    from frog.launch.program import parse_program
    from frog.launch.world import run_and_answer

    parsed = parse_program(program)

    def answer_below(folder: Path) -> int:
        print()
        return answer(folder)

    asked = replace(options, extra_env={**options.extra_env, "FROG_CHECK": str(every)}, hooks=CHECK_HOOKS)
    if parsed.kind != "frog":
        return run_and_answer(nodes, program, asked, answer_below)
    if parsed.name not in CHECKED_PROGRAMS and parsed.target[0] == "-m":
        raise UsageError(f"{parsed.name} does not train, so there is nothing to check", "frog check -- train RUN.toml")
    return _check_own(nodes, program, asked, parsed.name, answer_below)


def _check_own(nodes: Nodes, program: Sequence[str], options: Options, name: str, answer: Callable[[Path], int]) -> int:
    """Run a program of Frog's, which writes a run folder of its own, and record its numbers in a second one."""
    from frog.hooks import rank_environment
    from frog.launch.launch_record import new_folder
    from frog.launch.world import run_world

    folder = new_folder(options.runs or Path("runs"), f"check-{name}")
    print(f"records of the check: {folder}", file=sys.stderr, flush=True)
    recorded = rank_environment(options.extra_env, folder, options.hooks[1:], None)
    recorded |= {"FROG_START": "spawn"}  # a forked rank would not start the hooks
    try:
        code = run_world(nodes, program, replace(options, extra_env={**options.extra_env, **recorded}))
    except FrogError:
        answer(folder)
        raise
    said = answer(folder)
    return code or said


def read_world(args: argparse.Namespace, extra_env: Mapping[str, str] | None = None) -> tuple[Nodes, Options]:
    """Return the nodes and options that the arguments describe. Raises UsageError for invalid arguments."""
    from frog.launch.node_agents import Options
    from frog.launch.nodes import Nodes, parse_nodes

    if args.nproc is None and args.nodes is None:
        raise UsageError("no world size", "--nproc 4 for four ranks, or --nodes 2x4 for two nodes of four")
    nodes = parse_nodes(args.nodes) if args.nodes is not None else Nodes(1, 1, args.nproc)
    default_restarts = 3 if nodes.elastic else 0
    restarts = default_restarts if args.restarts is None else args.restarts
    if args.deadline is not None and not _LEAST_DEADLINE_S <= args.deadline < math.inf:
        raise UsageError(
            f"--deadline {args.deadline:g} is too short: ranks send two heartbeats per second",
            f"use at least {_LEAST_DEADLINE_S:g} seconds",
        )
    if args.network and not nodes.several:
        raise UsageError("--network needs several nodes: a single node has no link", "--nodes 2x2")
    network = None
    if args.network:
        from frog.launch.network import parse_network

        network = parse_network(args.network)
    env = dict(extra_env or {})
    options = Options(args.threads, restarts, replace=args.replace, network=network, extra_env=env)
    if args.deadline is not None:
        options = replace(options, deadline_s=args.deadline, idle_s=args.deadline)
    return nodes, options
