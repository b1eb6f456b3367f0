"""A torchrun command in place of a program: `frog run -- torchrun --nproc_per_node=4 my.py` means what it says.

Frog starts the ranks itself. It takes the size of the world and the number of restarts from torchrun's options,
accepts the ones that it replaces (rendezvous, logs), and refuses the rest by name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from frog.core.env import visible_gpus
from frog.core.errors import UsageError
from frog.core.machine import usable_cores

_REPLACED = (
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr", "master-port"),
    *("local-addr", "log-dir", "monitor-interval", "start-method", "role"),
)
"""Options with a value that Frog's launcher sets itself."""
_REFUSED = {
    "event-log-handler": "omit it: frog run records events in the run folder",
    "logs-specs": "omit it: frog run writes a log per rank",
    "local-ranks-filter": "omit it; frog logs RUN --rank N shows one rank",
    "duplicate-stdout-filters": "omit it; frog logs RUN --grep PATTERN filters lines",
    "duplicate-stderr-filters": "omit it; frog logs RUN --grep PATTERN filters lines",
    "numa-binding": "omit it: frog run does not bind ranks to cores",
    "signals-to-handle": "omit it: frog run forwards SIGINT and SIGTERM",
    "shutdown-timeout": "omit it: frog run ends ranks itself",
}
_REFUSED_FLAGS = {
    "run-path": "omit it: frog run starts scripts with python -u",
    "virtual-local-rank": "omit it: each rank sees its own LOCAL_RANK",
}
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True)
class TorchrunCommand:
    """The parts of a torchrun command that matter to `frog run`."""

    program: tuple[str, ...]
    """The program, as `frog run` accepts it."""
    num_nodes: int
    num_ranks: int
    """Ranks per node."""
    restarts: int | None
    ignored: tuple[str, ...]
    """Options that have no effect."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"torchrun: {message}", "torchrun --help lists its options")


def parse_torchrun(words: Sequence[str]) -> TorchrunCommand | None:
    """Parse `torchrun OPTIONS PROGRAM ...`, or the same as a module of Python; return None for another command.

    Raises:  UsageError for an option that does not exist or cannot be honoured.
    """
    options = _options(words)
    if options is None:
        return None
    args = _parser().parse_args(options)
    for name, hint in {**_REFUSED, **_REFUSED_FLAGS}.items():
        if getattr(args, name.replace("-", "_")):
            raise UsageError(f"torchrun --{name}: not supported by frog run", hint)
    if args.training_script is None:
        raise UsageError("torchrun: names no program", "frog run -- torchrun --nproc_per_node=4 my.py")
    return TorchrunCommand(
        program=_program(args),
        num_nodes=_num_nodes(args.nnodes),
        num_ranks=_num_ranks(args.nproc_per_node),
        restarts=args.max_restarts,
        ignored=tuple(f"--{name}" for name in _ignored(args)),
    )


def _options(words: Sequence[str]) -> list[str] | None:
    """Return the words after `torchrun`, `python -m torch.distributed.run` or `-m torch.distributed.run`."""
    if words and Path(words[0]).name == "torchrun":
        return list(words[1:])
    start = 1 if words and Path(words[0]).name.startswith("python") else 0
    is_module = len(words) > start + 1 and words[start] == "-m" and words[start + 1] in _MODULES
    return list(words[start + 2 :]) if is_module else None


def _parser() -> _Parser:
    parser = _Parser(prog="torchrun", add_help=False)

    def add(name: str, **settings: object) -> None:
        parser.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")), **settings)  # type: ignore[arg-type]

    add("nnodes", default="1")
    add("nproc-per-node", default="1")
    add("max-restarts", type=int)
    for name in (*_REPLACED, *_REFUSED):
        add(name)
    for name in ("standalone", "no-python", *_REFUSED_FLAGS):
        add(name, action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("-r", "--redirects")
    parser.add_argument("-t", "--tee")
    parser.add_argument("--use-env", "--use_env", action="store_true")  # of torch.distributed.launch
    parser.add_argument("training_script", nargs="?")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _program(args: argparse.Namespace) -> tuple[str, ...]:
    script = args.training_script
    if args.module:
        return ("-m", script, *args.training_script_args)
    if not args.no_python and not Path(script).is_file():
        raise UsageError(f"torchrun: {script}: no such script", "use the script's path, or -m for a module")
    path = script if args.no_python or Path(script).suffix == ".py" else f"{Path(script).absolute()}"
    return (path, *args.training_script_args)


def _ignored(args: argparse.Namespace) -> list[str]:
    names = [*_REPLACED, "standalone", "redirects", "tee"]
    return [name for name in names if getattr(args, name.replace("-", "_"))]


def _num_nodes(text: str) -> int:
    least, _, most = text.rpartition(":")
    if not most.isdecimal() or (least and least != most) or int(most) < 1:
        raise UsageError(
            f"torchrun --nnodes {text}: expected one number", "frog run --nodes 1:3x2 -- my.py shrinks and grows"
        )
    return int(most)


def _num_ranks(text: str) -> int:
    gpus = len(visible_gpus())
    words = {"gpu": gpus, "cpu": int(usable_cores()), "auto": gpus or int(usable_cores())}
    number = words.get(text, int(text) if text.isdecimal() else 0)
    if number < 1:
        why = "this machine has none" if text in words else "expected a number, gpu, cpu or auto"
        raise UsageError(f"torchrun --nproc-per-node {text}: {why}", "--nproc-per-node 4")
    return number


def merge_torchrun_options(command: TorchrunCommand, args: argparse.Namespace) -> None:
    """Use torchrun's options for the world of `frog run`, and print the ones that have no effect.

    Raises:  UsageError if they contradict the options of `frog run`.
    """
    if args.nodes is None:
        _merge_ranks(command, args)
    else:
        _check_nodes(command, args.nodes)
    if command.restarts is not None:
        if args.restarts not in (None, command.restarts):
            raise _disagreement(f"--restarts {args.restarts}", f"--max-restarts {command.restarts}")
        args.restarts = command.restarts
    if command.ignored:
        print(f"no effect under frog run: torchrun {', '.join(command.ignored)}", file=sys.stderr)


def _merge_ranks(command: TorchrunCommand, args: argparse.Namespace) -> None:
    if command.num_nodes > 1:
        size, program = f"{command.num_nodes}x{command.num_ranks}", " ".join(command.program[:2])
        raise UsageError(
            f"torchrun --nnodes {command.num_nodes}: this machine is one node",
            f"frog run --nodes {size} -- {program} ... simulates them",
        )
    if args.nproc not in (None, command.num_ranks):
        raise _disagreement(f"--nproc {args.nproc}", f"--nproc-per-node {command.num_ranks}")
    args.nproc = command.num_ranks


def _check_nodes(command: TorchrunCommand, nodes: str) -> None:
    """Check that the simulated nodes are those that torchrun's options describe, if they describe several."""
    size = f"{command.num_nodes}x{command.num_ranks}"
    same = (size, str(command.num_nodes)) if command.num_ranks == 1 else (size,)
    if command.num_nodes > 1 and nodes not in same:
        theirs = f"--nnodes {command.num_nodes} --nproc-per-node {command.num_ranks}"
        raise _disagreement(f"--nodes {nodes}", theirs)


def _disagreement(ours: str, theirs: str) -> UsageError:
    return UsageError(f"{ours} and torchrun {theirs} disagree", "omit one of them")
