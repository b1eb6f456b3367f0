"""Ranks forked from one process that has torch loaded, so that a world starts in a second.

Most of what a rank does before its first step is to import torch: 2 s of a core, the same for each. So the agent of a
node (`agent.py`) imports torch once and forks, before anything else, a *fork server*: a process that loads what the
program needs, then only waits. Asked for a rank it forks itself, and the child, in which everything is loaded
already, becomes the rank in some milliseconds. A world that starts again after a failure asks the same server.

What makes this safe, and where it is not done:

- A child of `fork` has a copy of all memory but only the thread that forked. A lock that another thread held at that
  moment stays locked for ever in the copy. So the server has one thread, and forks nothing should it ever find more.
- Whatever is read when a program is loaded (OMP_NUM_THREADS, PYTHONHASHSEED, LD_PRELOAD ...) was read by the agent.
  A rank whose environment differs in more than the variables that say who it is, or that another Python is to run, is
  started as a new program, as torchrun does it.
- A script may change its environment before it imports torch. So scripts are new programs too; Frog's own do not, and
  are forked. FROG_START=spawn or =fork decides for both.
- `os.fork` in a process that has loaded torch is known to work on Linux; nothing is forked elsewhere, nor where torch
  was built for GPUs: a driver that was asked for anything does not survive a fork, and here is none to try it with.

A rank is to find itself as it would otherwise: a child of the agent, leading a session of its own, with its arguments,
its environment and nothing open but stdin, stdout and stderr. It becomes the agent's child by being forked twice: the
process in between ends at once, and Linux gives an orphan to the nearest forebear that has said it takes them. So the
agent waits for ranks, and ranks see that the agent is gone, as ever; the death of the server ends neither. A server
that does not answer is ended, and ranks are new programs from then on. What it had forked and not named to the agent
does not become a rank.

    agent ── fork ──> server ── fork ──> in between ── fork ──> rank          (who was forked by whom)
    agent <─────────────────────── parent ───────────────────── rank          (once the one in between has ended)
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from frog.core.env import child_env, replace_env
from frog.core.processes import take_orphans

_OF_A_RANK = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|TORCHELASTIC_\w+|TORCH_NCCL_ASYNC_ERROR_HANDLING|FROG_ATTEMPT)"
)
"""Variables that say who a rank is. Nothing reads them when it is imported."""

_MOST_BYTES = 1 << 20
"""Of a message. Linux takes fewer; what is too long is not sent, and its rank is no fork."""

_ANSWER_S = 60.0
"""As long as a server may take for an answer. Before its first one it loads what the program needs."""


class ForkedRank:
    """A rank that was forked: what torchrun uses of a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code (negative: the signal that killed it) once it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        start = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - start > timeout:
                raise subprocess.TimeoutExpired(f"rank of process {self.pid}", timeout)
            time.sleep(0.01)
        return code


class ForkServer:
    """The agent's end of a fork server."""

    def __init__(self, requests: socket.socket, pid: int) -> None:
        self._requests, self.pid = requests, pid
        requests.settimeout(_ANSWER_S)
        self._loaded_with = child_env()
        self._number = 0

    def fork(self, command: Sequence[str], env: Mapping[str, str]) -> ForkedRank | None:
        """A rank that runs `command` with that environment; None if it has to be started as a new program."""
        if list(command[:2]) != [sys.executable, "-u"] or not self._has_loaded_for(env):
            return None
        self._number += 1
        request = {"number": self._number, "command": list(command), "env": dict(env)}
        with contextlib.suppress(OSError):  # the message is too long, or the server is gone
            self._requests.send(json.dumps(request).encode())
            while answer := self._answer():
                number, pid = json.loads(answer)
                if number == self._number:  # not that of a request which a signal has interrupted
                    return ForkedRank(pid) if pid else None
        return None

    def _answer(self) -> bytes:
        """What the server says next; nothing if it is gone. One that is silent for too long is ended."""
        try:
            return self._requests.recv(_MOST_BYTES)
        except TimeoutError:
            self._requests.shutdown(socket.SHUT_RDWR)  # from here on it can name no rank
            os.kill(self.pid, signal.SIGKILL)
            return self._requests.recv(_MOST_BYTES)

    def _has_loaded_for(self, env: Mapping[str, str]) -> bool:
        """Whether nothing that is read once, when it is loaded, would be read otherwise now."""
        return all(_OF_A_RANK.fullmatch(name) for name, _ in env.items() ^ self._loaded_with.items())


def start_fork_server(module: str | None) -> ForkServer | None:
    """Fork a server for ranks that run `module` (None: a script); None where processes are not safely forked.

    To be called before this process has a second thread, or anything open that ranks are not to have.
    """
    if not sys.platform.startswith("linux") or not _has_one_thread() or not take_orphans():
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.getpid()
    if (pid := os.fork()) == 0:
        ours.close()
        _serve(theirs, module, agent)
    theirs.close()
    return ForkServer(ours, pid)


def _has_one_thread() -> bool:
    """Whether this process has but one thread, once libraries that know of forks have ended theirs."""
    if _num_threads() > 1:
        pid = os.fork()  # numpy's OpenBLAS ends its threads before a fork, and starts them when it needs them again
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return _num_threads() == 1


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


# ---- in the server ---------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket, module: str | None, agent: int) -> NoReturn:
    """Fork a rank for each request, until the agent is gone."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    if module is not None:
        with contextlib.suppress(Exception):  # the rank will meet it again, and say it
            _load(module)
    gc.freeze()  # a collector that visits what all share would copy it, page by page
    while message := requests.recv(_MOST_BYTES):
        request = json.loads(message)
        held, release = os.pipe()
        pid = _fork_orphan() if _has_one_thread() else None
        if pid == 0:
            requests.close()
            os.close(release)
            _await_release(held)
            signal.signal(signal.SIGINT, interrupt)
            _be_rank(request["command"], request["env"], agent)
        os.close(held)
        with contextlib.suppress(OSError):  # the agent waits no more; or the rank has been killed already
            requests.send(json.dumps([request["number"], pid]).encode())
            os.write(release, b".")
        os.close(release)
    os._exit(0)


def _await_release(held: int) -> None:
    """Return once the agent has been told of this process; if it cannot be told, end."""
    with open(held, "rb", buffering=0) as file:
        if not file.read(1):
            os._exit(1)


def _load(module: str) -> None:
    """Import what `python -m MODULE` would; of a package that is what its `__main__` imports, by custom from `main`."""
    spec = importlib.util.find_spec(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    importlib.import_module(f"{module}.main" if is_package else module)


def _fork_orphan() -> int | None:
    """Fork twice. The pid of the second child, whose parent will be the agent; 0 in it; None if it can't be had."""
    reading, writing = os.pipe()
    between = _fork()
    if between == 0:
        between, pid = os.getpid(), _fork()
        if pid != 0:
            os.write(writing, str(pid or "").encode())
            os._exit(0)
        os.close(reading)
        os.close(writing)
        while os.getppid() == between:
            time.sleep(0.001)
        return 0
    os.close(writing)
    with open(reading, "rb", buffering=0) as file:
        pid_text = file.read(32)
    if between is not None:
        os.waitpid(between, 0)
    return int(pid_text) if pid_text else None


def _fork() -> int | None:
    try:
        return os.fork()
    except OSError:  # no memory, or no more processes allowed
        return None


# ---- in a rank -------------------------------------------------------------------------------------------------------


def _be_rank(command: Sequence[str], env: Mapping[str, str], agent: int) -> NoReturn:
    """Run `PYTHON -u -m MODULE ...` or `PYTHON -u SCRIPT ...` in this process, which ends as Python would end it."""
    if os.getppid() != agent:  # it ended while this rank began, so nobody would end this rank
        os._exit(1)
    os.setsid()
    replace_env(env)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # random does so by itself
    sys.orig_argv = list(command)
    first, *words = command[2:]
    if first == "-m":
        sys.argv = words
        sys.modules.pop(words[0], None)  # it was loaded for what it imports; it runs as __main__
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *words]
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.realpath(first))
        runpy.run_path(first, run_name="__main__")
    sys.exit()
