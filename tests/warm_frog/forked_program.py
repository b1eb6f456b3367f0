"""A program of `frog run`, in a process forked for it: `python -u forked_program.py TASK`. TASK: arguments of `run`."""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence

from unbuffered import unbuffer

from frog.core.env import replace_env
from frog.launch.network.namespaces import enter


def run(command: Sequence[str], env: Mapping[str, str], namespaces: Sequence[str], output: str) -> None:
    """Run `PYTHON -P [-u] -m MODULE ...` in this process.

    output: file in /proc of the pipe for stdout and stderr; empty for those of this process. A byte in the pipe tells
    its reader that it is open.
    """
    if output:
        pipe = os.open(output, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(pipe, number)
        os.close(pipe)
        os.write(1, b".")
    if namespaces:
        enter(namespaces)
    replace_env(env)
    words = command[command.index("-m") + 1 :]
    sys.orig_argv, sys.argv = list(command), list(words)
    set_safe_path()
    if "-u" in command[: command.index("-m")]:
        unbuffer()
    sys.modules.pop(words[0], None)  # it was only imported for its dependencies
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def set_safe_path() -> None:
    """Change this process to one that `python -P` started."""
    if not sys.flags.safe_path:
        index = sys.flags.__match_args__.index("safe_path")
        assign = ctypes.pythonapi.PyStructSequence_SetItem
        assign(ctypes.py_object(sys.flags), ctypes.c_ssize_t(index), ctypes.py_object(True))
        del sys.path[0]


if __name__ == "__main__":
    run(*json.loads(sys.argv[1]))
