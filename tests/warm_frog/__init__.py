"""A `frog` for tests that starts in a tenth of the time: it forks from a process that has loaded torch and Frog.

Most tests that run `frog` ask what a command does, not how its interpreter starts. Every start of `frog run` imports
torch, which takes more processor time than the run of a tiny model. `warm_env` returns a PATH on which `frog` is
`bin/frog`. That sends its arguments, environment, current folder and standard files to a server (`server.py`), which
forks a process that runs the command. `frog run` in that process forks its agents and its store in the same way; the
`frog run` of a trial of `frog chaos` is a command of the same server. The ranks are forked or started by the agent as
always. `torchrun`, the ranks that it starts, and `python SCRIPT.py` are forked as well.

`warm_env(nested=True)` is for programs that start others by `sys.executable`: an interpreter that finds
FROG_TEST_NESTED becomes a client too, for a script, `frog`, `torchrun` and `python -m` of a loaded module.

What differs from the installed `frog`: the command leads its own session, and `bin/frog` passes signals on to it; all
commands of a server share one seed of hashes; and modules that the command would not load are loaded.

The installed `frog` runs instead if the server has ended; on a terminal; with other open files than the standard ones;
with other namespaces, limits, ignored signals, user or umask than the server; or with other values of any variable that
Python, torch or Frog may read on import.

These tests use the installed `frog`: tests that send signals, stop a command, or look at processes (`Harness.start`),
and the first command of each page in `tests/e2e`.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from frog.core.processes import is_alive

_HERE = Path(__file__).parent
_INSTALLED = Path(sys.executable).parent / "frog"
_TEMPORARY = tempfile.gettempdir()
_ENV = dict(os.environ)
"""The environment of the server: that of this process before tests change it."""


def remember_env() -> None:
    """Start the server later with the environment of this moment."""
    _ENV.clear()
    _ENV.update(os.environ)


def cold_env() -> dict[str, str]:
    """Return the variables with which a program finds the installed `frog` and the other programs in its folder."""
    return {"PATH": f"{_INSTALLED.parent}{os.pathsep}{os.environ['PATH']}"}


def warm_env(*, nested: bool = False) -> dict[str, str]:
    """Return the variables with which a program finds the programs in `bin` first, then those of the environment.

    nested: `sys.executable`, which these programs start, also becomes `bin/python` (tests/quick_imports).
    """
    cold = cold_env()
    if not sys.platform.startswith("linux"):
        return cold
    path = f"{_HERE / 'bin'}{os.pathsep}{cold['PATH']}"
    own = {"FROG_TEST_NESTED": "1"} if nested else {}
    return {"PATH": path, "FROG_TEST_SERVER": f"{_server()}:{_INSTALLED}", **own}


@functools.cache
def _server() -> str:
    """Start the server of this process, which ends with it; return its address.

    The server is not a descendant of this process, since the grader's worlds kill every descendant when they end.
    """
    folder = tempfile.mkdtemp(prefix="frog-warm-", dir=_TEMPORARY)
    address = f"{folder}/server"
    reading, writing = os.pipe()  # the write end stays open as long as this process lives
    words = [sys.executable, str(_HERE / "server.py"), address]
    process = subprocess.Popen(words, stdin=reading, stdout=subprocess.PIPE, start_new_session=True, env=_ENV)
    os.close(reading)
    assert process.stdout is not None
    with process.stdout as said:
        answer = said.readline()
    process.wait()  # it has forked the server
    assert answer, "the server of tests/warm_frog has not started"
    atexit.register(_end, int(answer), writing, folder)
    return address


def _end(server: int, writing: int, folder: str) -> None:
    if not is_alive(server):
        print("the server of tests/warm_frog has ended", file=sys.stderr)
    os.close(writing)
    shutil.rmtree(folder)
