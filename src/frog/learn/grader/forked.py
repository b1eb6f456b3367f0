"""A program of a check, forked from a process that has torch loaded: `-m frog.learn.grader.forked TASK`.

It saves the two seconds of CPU time in which a new program imports torch and its optimizers.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from frog.core.env import child_env, replace_env
from frog.core.processes import leave
from frog.launch.resource_limits import MOST_FILE_BYTES
from frog.launch.torchrun.forkserver import ForkedRank, ForkServer
from frog.learn.grader.guard import hide, keep_files


def confine(labs: Path, writes: Sequence[Path]) -> None:
    """Hide the course's folders from this process and those that it starts, and limit where and how much they write."""
    hide(labs)
    keep_files(writes)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))


def fork_program(
    server: ForkServer, words: Sequence[str], scratch: Path, env: Mapping[str, str], streams: Sequence[int], labs: Path
) -> ForkedRank | None:
    """Fork a process that runs `PYTHON SCRIPT ...` in `scratch`; None if it must start as a new program.

    streams: the judge's descriptors of its stdin, stdout and stderr.
    """
    paths = [f"/proc/{os.getpid()}/fd/{stream}" for stream in streams]
    task = {"words": words[1:], "scratch": str(scratch), "env": dict(env), "streams": paths, "labs": str(labs)}
    return server.fork([sys.executable, "-u", "-m", __name__, json.dumps(task)], child_env())


def main(text: str) -> NoReturn:
    """Become the program, and exit as Python would."""
    task = json.loads(text)
    os.closerange(3, 1 << 16)  # a fork inherits the judge's open files, including the pipe for the verdict
    for number, (path, flags) in enumerate(zip(task["streams"], (os.O_RDONLY, os.O_RDWR, os.O_RDWR), strict=True)):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(task["scratch"])
    replace_env(task["env"])
    tempfile.tempdir = None
    confine(Path(task["labs"]), [Path(task["scratch"])])
    torch.default_generator.seed()  # at random, as in a new process
    sys.argv = task["words"]
    sys.path.insert(0, task["scratch"])
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:  # also an error in a process that the program forked
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # wait for the program's threads
    leave(code)


if __name__ == "__main__":
    main(sys.argv[1])
