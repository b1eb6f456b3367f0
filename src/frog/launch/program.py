"""The program that a world runs: one of Frog's programs, a script, a module, any command, or a torchrun command.

`frog run -- torchrun --nproc_per_node=4 my.py` means what it says. Frog starts the ranks itself: it takes the size of
the world and the number of restarts from torchrun's options, accepts the ones that it replaces (rendezvous, logs), and
refuses the rest by name.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from frog.core.env import visible_gpus
from frog.core.errors import UsageError
from frog.core.machine import usable_cores
from frog.core.units import parse_whole
from frog.core.user_input import integer

_PROGRAMS = {
    "train": "frog.train",
    "finetune": "frog.train.finetune",
    "prove": "frog.train.prove.prove_rank",
    "profile": "frog.train.profile.profile_rank",
    "explain": "frog.learn.explain.explain_rank",
    "collectives": "frog.measure.peers.peers_rank",
}
"""Frog's programs that run on every rank."""

_RESUMABLE = frozenset({"train", "finetune"})
"""Programs that resume from their last checkpoint after a restart."""

_LAUNCHERS = {
    **dict.fromkeys(("mpirun", "mpiexec", "srun", "horovodrun", "deepspeed", "colossalai"), ()),
    "accelerate": ("launch",),
}
"""Other launchers of ranks, each with the subcommand that starts them."""

_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*|(?:ba|da|z|k)?sh")
_OF_FROG = re.compile(rb"^\s*(?:from|import)\s+frog\.(?!observe\b|record\b)", re.MULTILINE)
"""An import in a script that runs Frog's own trainer or parts of it, which record themselves."""
_MOST_BYTES = 1 << 20

Kind = Literal["frog", "script", "module", "command"]


@dataclass(frozen=True)
class RankProgram:
    """What every rank runs."""

    words: tuple[str, ...]
    """The command as typed."""
    target: tuple[str, ...]
    """torchrun's arguments for it."""
    kind: Kind
    """"frog": one of Frog's programs, or a script that uses Frog's trainer: it writes its own run folder."""
    name: str
    """Name of its run folder."""


def can_resume(program: Sequence[str]) -> bool:
    """True if a program can resume after a restart. Assumed for programs that are not Frog's."""
    return program[0] in _RESUMABLE or program[0] not in _PROGRAMS


def can_be_joined(program: Sequence[str]) -> bool:
    """True if ranks can join a run of this program. Assumed for programs that are not Frog's."""
    return program[0] == "train" or program[0] not in _PROGRAMS


def parse_program(words: Sequence[str]) -> RankProgram:
    """Return the program that a command names.

        train RUN.toml ...       one of Frog's programs
        my.py ...                a Python script
        -m package ...           a Python module
        python my.py ...         any command: found in a folder or on PATH

    Raises:  UsageError if there is nothing to run, the program does not exist, or it would start ranks itself.
    """
    if not words:
        raise UsageError(
            "nothing to run", "frog run --nproc 4 -- train config/demo.toml, or frog run --nproc 4 -- my.py"
        )
    first, *rest = words
    if first in _PROGRAMS:
        return RankProgram(tuple(words), ("-m", _PROGRAMS[first], *rest), "frog", first)
    if first == "-m":
        return _module(words)
    _refuse_launcher(words)
    path = Path(first)
    if path.is_file() and (path.suffix == ".py" or not _is_command(path)):
        kind: Kind = "frog" if _uses_frog(path) else "script"
        return RankProgram(tuple(words), tuple(words), kind, _name(path.stem))
    if path.is_file() or shutil.which(first):
        return RankProgram(tuple(words), ("--no-python", *words), "command", _name(_stem(words)))
    raise UsageError(
        f"{first}: neither a script, a command, nor a frog command that runs on every rank ({', '.join(_PROGRAMS)})",
        "frog run --nproc 4 -- my.py, or frog run --nproc 4 -- train RUN.toml",
    )


def _module(words: Sequence[str]) -> RankProgram:
    if len(words) < 2:
        raise UsageError("-m: names no module", "frog run --nproc 4 -- -m package.module")
    kind: Kind = "frog" if words[1].startswith("frog.") else "module"
    return RankProgram(tuple(words), tuple(words), kind, _name(words[1]))


def _refuse_launcher(words: Sequence[str]) -> None:
    """Refuse other launchers, since each rank would start all ranks again."""
    name = Path(words[0]).name
    subcommand = _LAUNCHERS.get(name)
    if subcommand is not None and tuple(words[1 : 1 + len(subcommand)]) == subcommand:
        command = " ".join([name, *subcommand])
        raise UsageError(
            f"{command}: starts ranks itself, and frog run would start it once per rank",
            "name the program that it starts: frog run --nproc 4 -- my.py ...",
        )


def _is_command(path: Path) -> bool:
    """True if a file without the suffix .py can be executed; otherwise Python runs it.

    Raises:  UsageError for a shell script that cannot be executed.
    """
    executable = shutil.which(path.absolute()) is not None
    with open(path, "rb") as file:
        head = file.read(2)
    if path.suffix in (".sh", ".bash") and not (executable and head == b"#!"):
        missing = "has no #! line" if executable else "is not executable"
        raise UsageError(f"{path}: {missing}", f"frog run --nproc 4 -- bash {path} ...")
    return executable


def _uses_frog(script: Path) -> bool:
    """True if a script imports Frog's own packages: its trainer writes logs and a run folder itself."""
    with open(script, "rb") as file:
        return _OF_FROG.search(file.read(_MOST_BYTES)) is not None


def _stem(words: Sequence[str]) -> str:
    """Return the stem of the script that a command runs, or of the command: `my` for `python -u my.py`."""
    command = Path(words[0])
    if _INTERPRETER.fullmatch(command.name):
        if "-m" in words[:-1]:
            return words[words.index("-m") + 1]
        for word in words[1:]:
            if not word.startswith("-") and Path(word).is_file():
                return Path(word).stem
    return command.stem


def _name(stem: str) -> str:
    """Return a name for a folder."""
    return re.sub(r"[^\w.-]+", "_", stem).strip("._-")[:80] or "program"


# ---- torchrun commands -----------------------------------------------------------------------------------------------

_REPLACED_OPTIONS = (
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr", "master-port"),
    *("local-addr", "log-dir", "monitor-interval", "start-method", "role"),
)
"""Options with a value that Frog's launcher sets itself."""
_REFUSED_OPTIONS = {
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
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")


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


class _TorchrunParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"torchrun: {message}", "torchrun --help lists its options")


def parse_torchrun(words: Sequence[str]) -> TorchrunCommand | None:
    """Parse `torchrun OPTIONS PROGRAM ...`, or the same as a module of Python; return None for another command.

    Raises:  UsageError for an option that does not exist or cannot be honoured.
    """
    options = _torchrun_words(words)
    if options is None:
        return None
    args = _torchrun_parser().parse_args(options)
    for name, hint in {**_REFUSED_OPTIONS, **_REFUSED_FLAGS}.items():
        if getattr(args, name.replace("-", "_")):
            raise UsageError(f"torchrun --{name}: not supported by frog run", hint)
    if args.training_script is None:
        raise UsageError("torchrun: names no program", "frog run -- torchrun --nproc_per_node=4 my.py")
    return TorchrunCommand(
        program=_torchrun_program(args),
        num_nodes=_num_nodes(args.nnodes),
        num_ranks=_num_ranks(args.nproc_per_node),
        restarts=args.max_restarts,
        ignored=tuple(f"--{name}" for name in _ignored_options(args)),
    )


def _torchrun_words(words: Sequence[str]) -> list[str] | None:
    """Return the words after `torchrun`, `python -m torch.distributed.run` or `-m torch.distributed.run`."""
    if words and Path(words[0]).name == "torchrun":
        return list(words[1:])
    start = 1 if words and Path(words[0]).name.startswith("python") else 0
    is_module = len(words) > start + 1 and words[start] == "-m" and words[start + 1] in _TORCHRUN_MODULES
    return list(words[start + 2 :]) if is_module else None


def _torchrun_parser() -> _TorchrunParser:
    parser = _TorchrunParser(prog="torchrun", add_help=False)

    def add(name: str, **settings: object) -> None:
        parser.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")), **settings)  # type: ignore[arg-type]

    add("nnodes", default="1")
    add("nproc-per-node", default="1")
    add("max-restarts", type=integer)
    for name in (*_REPLACED_OPTIONS, *_REFUSED_OPTIONS):
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


def _torchrun_program(args: argparse.Namespace) -> tuple[str, ...]:
    script = args.training_script
    if args.module:
        return ("-m", script, *args.training_script_args)
    if not args.no_python and not Path(script).is_file():
        raise UsageError(f"torchrun: {script}: no such script", "use the script's path, or -m for a module")
    path = script if args.no_python or Path(script).suffix == ".py" else f"{Path(script).absolute()}"
    return (path, *args.training_script_args)


def _ignored_options(args: argparse.Namespace) -> list[str]:
    names = [*_REPLACED_OPTIONS, "standalone", "redirects", "tee"]
    return [name for name in names if getattr(args, name.replace("-", "_"))]


def _num_nodes(text: str) -> int:
    least, _, most = text.rpartition(":")
    number = parse_whole(most)
    if not number or (least and least != most):
        raise UsageError(
            f"torchrun --nnodes {text}: expected one number", "frog run --nodes 1:3x2 -- my.py shrinks and grows"
        )
    return number


def _num_ranks(text: str) -> int:
    gpus = len(visible_gpus())
    words = {"gpu": gpus, "cpu": int(usable_cores()), "auto": gpus or int(usable_cores())}
    number = words.get(text, parse_whole(text) or 0)
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
