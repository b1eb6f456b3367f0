"""Forks ranks from one process that has torch loaded, so that a world starts in a second.

Before its first step, a rank mostly imports torch, which takes 2 s of CPU time per rank. So the agent of a node
(`agent.py`) imports torch once and first forks a *fork server*: a process that loads the program's modules and then
waits. For each requested rank it forks itself, and the child, which has everything loaded, becomes the rank within
milliseconds. A world that restarts after a failure uses the same server.

Why this is safe, and when Frog does not fork:

- A child of `fork` has a copy of all memory, but only the thread that forked. A lock that another thread held at that
  moment stays locked forever in the copy. So the server has one thread, and refuses to fork if it finds more.
- The agent has already read the variables that programs read when they load (OMP_NUM_THREADS, PYTHONHASHSEED,
  LD_PRELOAD ...). A rank whose environment differs in variables other than its rank, or that needs another Python,
  starts as a new program, as under torchrun.
- A script may change its environment before it imports torch. So scripts also start as new programs. Frog's programs
  do not change it, and are forked. FROG_START=spawn overrides this, and =fork forks the scripts that use Frog's
  packages. Other scripts are observed from their interpreter's start (frog.observe), so they are never forked.
- `os.fork` in a process that has loaded torch is known to work on Linux. Frog does not fork on other systems, nor if
  torch was built for GPUs: an initialized driver does not survive a fork, and this was not tested with a GPU.

A forked rank looks like any other: a child of the agent that leads its own session, with its own arguments and
environment, and only stdin, stdout and stderr open. It becomes the agent's child through a double fork: the process in
between ends immediately, and Linux gives orphans to the nearest ancestor that has registered as subreaper. So the agent
can wait for ranks, and ranks detect the end of the agent, as usual; the death of the server ends neither. The agent
kills a server that does not answer, and starts ranks as new programs from then on. A process that the server forked
but did not report to the agent does not become a rank.

    agent ── fork ──> server ── fork ──> in between ── fork ──> rank          (forks)
    agent <─────────────────────── parent ───────────────────── rank          (after the process in between has ended)
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
"""Variables that differ between ranks. No module reads them on import."""

_MOST_BYTES = 1 << 20
"""Maximum size of a message. Linux accepts less; if a message is too long to send, its rank starts as a program."""

_ANSWER_S = 60.0
"""Timeout of the server's answers. Before the first one, it loads the program's modules."""


class ForkedRank:
    """A forked rank, with the part of the `subprocess.Popen` interface that torchrun uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the rank's exit code (negative: the signal that killed it), or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends. Raises subprocess.TimeoutExpired."""
        start = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - start > timeout:
                raise subprocess.TimeoutExpired(f"rank of process {self.pid}", timeout)
            time.sleep(0.01)
        return code


class ForkServer:
    """The agent's side of a fork server."""

    def __init__(self, requests: socket.socket, pid: int) -> None:
        self._requests, self.pid = requests, pid
        requests.settimeout(_ANSWER_S)
        self._loaded_with = child_env()
        self._number = 0

    def fork(self, command: Sequence[str], env: Mapping[str, str]) -> ForkedRank | None:
        """Fork a rank that runs `command` with this environment; None if it must start as a new program."""
        if list(command[:2]) != [sys.executable, "-u"] or not self._has_loaded_for(env):
            return None
        self._number += 1
        request = {"number": self._number, "command": list(command), "env": dict(env)}
        with contextlib.suppress(OSError):  # the message is too long, or the server has ended
            self._requests.send(json.dumps(request).encode())
            while answer := self._answer():
                number, pid = json.loads(answer)
                if number == self._number:  # not the answer to a request that a signal interrupted
                    return ForkedRank(pid) if pid else None
        return None

    def _answer(self) -> bytes:
        """Return the server's next answer; empty if the server has ended. Kills a server that does not answer."""
        try:
            return self._requests.recv(_MOST_BYTES)
        except TimeoutError:
            self._requests.shutdown(socket.SHUT_RDWR)  # the server can no longer report a rank
            os.kill(self.pid, signal.SIGKILL)
            return self._requests.recv(_MOST_BYTES)

    def _has_loaded_for(self, env: Mapping[str, str]) -> bool:
        """True if this environment differs only in variables that no module reads on import."""
        return all(_OF_A_RANK.fullmatch(name) for name, _ in env.items() ^ self._loaded_with.items())


def start_fork_server(module: str | None) -> ForkServer | None:
    """Fork a server for ranks that run `module` (None: a script); return None if forking is not safe.

    Call this before this process starts a second thread, or opens files that ranks must not inherit.
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
    """True if this process has only one thread, after fork-aware libraries have stopped theirs."""
    if _num_threads() > 1:
        pid = os.fork()  # numpy's OpenBLAS stops its threads before a fork, and restarts them on demand
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return _num_threads() == 1


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


# ---- in the server ---------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket, module: str | None, agent: int) -> NoReturn:
    """Fork a rank for each request, until the agent ends."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    if module is not None:
        with contextlib.suppress(Exception):  # the rank will hit the same error and report it
            _load(module)
    gc.freeze()  # the garbage collector would copy shared pages by visiting them
    while message := requests.recv(_MOST_BYTES):
        request = json.loads(message)
        held, release = os.pipe()
        pid = _fork_orphan() if _has_one_thread() else None
        if pid == 0:
            requests.close()
            os.close(release)
            _await_release(held)
            signal.signal(signal.SIGINT, interrupt)
            _run_as_rank(request["command"], request["env"], agent)
        os.close(held)
        with contextlib.suppress(OSError):  # the agent no longer waits, or the rank was already killed
            requests.send(json.dumps([request["number"], pid]).encode())
            os.write(release, b".")
        os.close(release)
    os._exit(0)


def _await_release(held: int) -> None:
    """Return once the agent knows about this process; end the process if it cannot be reported."""
    with open(held, "rb", buffering=0) as file:
        if not file.read(1):
            os._exit(1)


def _load(module: str) -> None:
    """Import what `python -m MODULE` would import; a package's `__main__` imports from its `main`, by convention."""
    spec = importlib.util.find_spec(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    importlib.import_module(f"{module}.main" if is_package else module)


def _fork_orphan() -> int | None:
    """Fork twice. Return the pid of the second child, which the agent adopts; 0 in that child; None on failure.

    The second child leads its own session by the time its pid is returned.
    """
    reading, writing = os.pipe()
    between = _fork()
    if between == 0:
        between, pid = os.getpid(), _fork()
        if pid != 0:
            os._exit(0)
        os.close(reading)
        while os.getppid() == between:
            time.sleep(0.001)
        os.setsid()  # before the agent knows the pid: the agent stops a rank by its process group
        os.write(writing, str(os.getpid()).encode())
        os.close(writing)
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
    except OSError:  # out of memory, or too many processes
        return None


# ---- in a rank -------------------------------------------------------------------------------------------------------


def _run_as_rank(command: Sequence[str], env: Mapping[str, str], agent: int) -> NoReturn:
    """Run `PYTHON -u -m MODULE ...` or `PYTHON -u SCRIPT ...` in this process, and exit like Python."""
    if os.getppid() != agent:  # the agent ended meanwhile, so no process would end this rank
        os._exit(1)
    replace_env(env)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # the module random reseeds itself
    sys.orig_argv = list(command)
    first, *words = command[2:]
    if first == "-m":
        sys.argv = words
        sys.modules.pop(words[0], None)  # it was only imported for its dependencies; it runs as __main__
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *words]
        folder = os.path.dirname(os.path.realpath(first))
        if sys.flags.safe_path:
            sys.path.insert(0, folder)
        else:
            sys.path[0] = folder
        runpy.run_path(first, run_name="__main__")
    sys.exit()
