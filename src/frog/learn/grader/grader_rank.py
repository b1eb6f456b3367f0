"""A learner's process: the judge starts `python -m frog.learn.grader.grader_rank ADDRESS RANK TOKEN`.

It connects to the judge, receives its task, joins the world, confines itself, and only then loads the learner's code.
It sends the result as plain data and ends without running anything else.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
import os
import random
import resource
import shutil
import socket
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d

from frog.core.env import bind_loopback, child_env, replace_env
from frog.core.files import socket_name
from frog.core.namespaces import die_with_parent
from frog.launch.resource_limits import MOST_FILE_BYTES
from frog.learn.grader import codec, collectives, guard, late_future, live_bytes, message, peers, turns
from frog.learn.grader.collectives import Layer
from frog.learn.grader.guard import Snapshot, set_bounds
from frog.learn.grader.message import Line

_MOST_FILES = 256
_RENAMED = r"`torch\.distributed\.\w+` is deprecated"
"""torch 2.13 warns of functions such as all_gather_into_tensor. Older versions do not have their new names."""


def main(address: str, rank: int, token: str) -> None:
    """Run the judge's task and report the result."""
    if "torch._dynamo" not in sys.modules:  # this process was not forked from one that has loaded everything
        load_all()
    os.closerange(3, 1 << 16)  # a fork inherits the judge's open files, including the pipe for the verdict
    output = _connect(address)
    line = Line(_connect(address))
    output.sendall(codec.pack({"type": "output", "rank": rank, "token": token}))
    line.send({"type": "hello", "rank": rank, "token": token})
    task = line.answer()
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    warnings.filterwarnings("ignore", _RENAMED, FutureWarning)
    try:
        _run(task, rank, line)
    except BaseException:  # the grader's own error; do not unwind into the frames of the forking judge
        traceback.print_exc()
        os._exit(1)
    with contextlib.suppress(EOFError, OSError):
        line.answer()  # none comes: others may still need this rank, so stay until the judge ends all ranks
    os._exit(0)


def load_all() -> None:
    """Load modules that torch imports lazily, before the sandbox: an optimizer's first step imports a compiler."""
    layer = torch.nn.Linear(1, 1)
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        layer(torch.ones(1)).backward()
        kind(layer.parameters(), lr=0.1).step()
    create: Any
    for create in _classes_in(torch.optim, torch.optim.Optimizer):  # the first instance replaces its class's `step`
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            create([torch.nn.Parameter(torch.ones(1, 1))])


def _connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    with socket_name(Path(address)) as name:
        connection.connect(name)
    return connection


def _run(task: dict[str, Any], rank: int, line: Line) -> None:
    """Prepare the process, then load the learner's files and call the exercise's function."""
    guard.hide(Path(task["bounds"][0]))
    if sys.platform.startswith("linux"):
        die_with_parent()
    os.chdir(task["scratch"])
    home = dict.fromkeys(("TMPDIR", "HOME", "MPLCONFIGDIR"), task["scratch"])
    replace_env(child_env(**home, **task["env"]))
    tempfile.tempdir = None
    bind_loopback("127.0.0.1")
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    files = {str(Path(task["folder"]) / name): data for name, data in task["files"].items()}
    if task["join"]:
        store = dist.FileStore(task["store"], task["size"])  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=task["size"], timeout=timedelta(seconds=60))
    Layer(line, files, rank == task["held"]).install()
    sys.path.insert(0, task["folder"])
    work = getattr(_module("ranks", "<ranks.py>", task["ranks"]), task["work"])
    snapshot = Snapshot(_watched(), sys.modules["ranks"])
    _set_limits()
    line.send({"type": "ready", "seconds": time.process_time()})
    line.answer()  # all ranks have joined: an error in this rank's code can no longer break another rank's joining
    guard.keep_files([Path(task["scratch"]), Path(task["store"]).parent])
    set_bounds(functools.partial(_violation, line), *map(Path, task["bounds"]))
    try:
        learner = _load(task, files)
        missing = [name for name in task["functions"] if not callable(getattr(learner, name, None))]
        if missing:
            _violation(line, "missing-function", f"The file does not define {missing[0]}.")
            return
        value = work(learner, task["case"])
    except BaseException as error:
        line.send(_error(error, files))
        return
    if (changed := snapshot.changed()) is not None:
        _violation(line, "patched", f"{changed} was replaced.")
    elif not _is_open():
        _violation(line, "closed-output", "Its stdout was closed.")
    else:
        sys.stdout.flush()
        _send(line, value, files)


def _violation(line: Line, what: str, seen: str) -> None:
    line.send({"type": "violation", "id": what, "seen": _text(seen)})


def _send(line: Line, value: Any, files: dict[str, bytes]) -> None:
    try:
        line.send({"type": "result", "value": value})
    except codec.NotPlain as problem:
        line.send(_error(problem, {}))
    except BaseException as error:  # from a method of a value whose class is the learner's
        line.send(_error(error, files))


def _watched() -> list[ModuleType | type]:
    """Return the modules and classes that a learner's code must not change."""
    modules: list[ModuleType | type] = [
        torch,
        torch.Tensor,
        torch.nn,
        torch.nn.functional,
        torch.nn.Module,
        torch.optim,
    ]
    modules += [torch.autograd, torch.linalg, dist, distributed_c10d, _functional_collectives, os, time, socket, numpy]
    modules += [codec, collectives, guard, message, Layer, Line, Snapshot, collectives.LateWork, late_future.LateFuture]
    modules += [turns, turns.Turns, turns.TurnStore, live_bytes, live_bytes.LiveBytes]
    modules += [peers, peers.Peers, peers.Wires]
    modules += [copy, json, math, random, shutil, tempfile, Path, sys.modules[__name__]]
    modules += _classes_in(torch.nn.modules, torch.nn.Module) + _classes_in(torch.optim, torch.optim.Optimizer)
    return list(dict.fromkeys([*modules, *_of_the_exercise(sys.modules["ranks"])]))


def _classes_in(module: ModuleType, base: type) -> list[ModuleType | type]:
    return [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]


def _of_the_exercise(ranks: ModuleType) -> list[ModuleType | type]:
    """Return the exercise's own module, its classes, and the modules that it uses."""
    values = [value for value in vars(ranks).values() if value is not sys]
    classes = [value for value in values if isinstance(value, type) and value.__module__ == ranks.__name__]
    return [ranks, *classes, *(value for value in values if isinstance(value, ModuleType))]


def _set_limits() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, most in ((resource.RLIMIT_NOFILE, _MOST_FILES), (resource.RLIMIT_FSIZE, MOST_FILE_BYTES)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most, most) if hard in (-1, resource.RLIM_INFINITY) or hard > most else (hard, hard))


def _load(task: dict[str, Any], files: dict[str, bytes]) -> ModuleType:
    """Load the learner's first Python file as a module that can import the others; without one, an empty module."""
    first = next((name for name in task["files"] if name.endswith(".py")), None)
    if first is None:
        return ModuleType("learner")
    path = str(Path(task["folder"]) / first)
    return _module(Path(first).stem, path, files[path])


def _module(name: str, path: str, source: bytes) -> ModuleType:
    """Create a module. The exercise's own module gets no real file name, so that no traceback opens its file."""
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), vars(module))
    return module


def _is_open() -> bool:
    try:
        os.fstat(1)
        return not sys.stdout.closed
    except (OSError, AttributeError):
        return False


def _error(error: BaseException, files: dict[str, bytes]) -> dict[str, Any]:
    """Describe an exception and its place in the learner's files."""
    trace = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    steps = [step for step in trace if step.filename in files]
    where = f"{Path(steps[-1].filename).name}:{steps[-1].lineno}" if steps else ""
    if isinstance(error, SyntaxError) and error.filename in files:
        where = f"{Path(str(error.filename)).name}:{error.lineno}"
    lines = [_text(f"{Path(step.filename).name}:{step.lineno}, in {step.name}") for step in steps]
    notes = [_text(note) for note in _notes(error)]
    if isinstance(error, ModuleNotFoundError) and files:
        notes = [
            *notes,
            f"(The check runs {', '.join(Path(path).name for path in files)} and no other file of yours.)",
        ]
    return {
        "type": "error",
        "name": _text(type(error).__name__),
        "errno": error.errno if isinstance(error, OSError) else None,
        "text": " ".join([_text(error), *notes])[:2000],
        "where": where,
        "trace": lines[-8:],
    }


def _notes(error: BaseException) -> list[Any]:
    notes = vars(error).get("__notes__")
    return notes if isinstance(notes, list) else []


def _text(value: Any) -> str:
    """Return the value as text that can be encoded, whatever the learner's `__str__` does."""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except BaseException as problem:
        return f"(no text: its __str__ raised {type(problem).__name__})"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
