"""Forks a process per command of `frog`, `torchrun` or `python`: `python server.py ADDRESS`.

It ends when its standard input closes.

It forks the server first and ends. The server prints its process number when it is ready.

    server ── fork ──> supervisor ── fork ──> command of `frog` ── fork ──> fork server ── fork ──> agent of `frog run`

The server only accepts connections. A supervisor, one per connection, waits for its command and for its client. The
fork server (frog.launch.torchrun.forkserver) is forked before the command begins, so that an agent inherits nothing
from it; agents become the command's children.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import marshal
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO, NoReturn

if __name__ == "__main__" and os.fork() != 0:
    os._exit(0)

LOADED_WITH = dict(os.environ)

from frog.core.processes import loading

with loading():
    import torch._dynamo  # noqa: F401 - torch's optimizers load it when they are created

    import frog.cli
    import frog.launch.harness
    import frog.launch.launch_commands
    import frog.launch.node_agents
    import frog.launch.torchrun.agent
    import frog.launch.torchrun.store
    import frog.launch.world
    import frog.observe.view.view_commands
    import frog.train.main
    import frog.train.prove.prove_commands

import forked_program
from unbuffered import unbuffer

from frog.core.env import child_env, replace_env, wait_passively
from frog.core.machine import use_huge_pages
from frog.core.processes import leave
from frog.launch.torchrun.forkserver import ForkedRank, ForkServer, start_fork_server

HERE = Path(__file__).parent
_MAY_DIFFER = re.compile(
    r"FROG_(START|CACHE_DIR|BACKEND|OBSERVER|NODE_NAME|LAUNCHER_PID|ATTEMPT|OWN)|PYTEST_\w+|TMPDIR"
    r"|TORCHINDUCTOR_CACHE_DIR|PATH|PWD|OLDPWD|SHLVL|_|COLUMNS|LINES|NO_COLOR|BROWSER|FROG_TEST_(SERVER|NESTED)"
    r"|PYTHON_EXEC|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|TORCHELASTIC_\w+|TORCH_NCCL_ASYNC_ERROR_HANDLING)|NODE_RANK|NNODES|NPROC_PER_NODE|GLOO_SOCKET_IFNAME"
)
"""Variables of a command that Python, torch and Frog do not read when they load."""
_OF_AN_AGENT = re.compile(r"FROG_\w+|PYTHONPATH|PYTHONUNBUFFERED|TORCH_DISABLE_SHARE_RDZV_TCP_STORE|GLOO_SOCKET_IFNAME")
"""The launcher's changes to the environment of its agent, which the agent does not read when it loads."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MOST_BYTES = 1 << 20


def differs_only_in(names: re.Pattern[str], env: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return True if two environments have equal values of all other variables."""
    return all(names.fullmatch(name) for name, _ in env.items() ^ other.items())


def serve(listening: socket.socket) -> socket.socket:
    """Fork a process per connection, in which this returns the connection. The server exits when its input closes."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps supervisors
    while True:
        ready, _, _ = select.select([0, listening], [], [])
        if 0 in ready:
            os._exit(0)
        with contextlib.suppress(OSError):  # too many processes or files: the client starts a new program
            connection, _ = listening.accept()
            with connection:
                if os.fork() == 0:
                    for number, handler in before.items():
                        signal.signal(number, handler)
                    return connection.dup()


def supervise(connection: socket.socket, pid: int) -> NoReturn:
    """Tell the client how the command's process ends; kill that process if the client is killed."""
    process = os.pidfd_open(pid)
    connection.send(str(pid).encode())
    ready, _, _ = select.select([process, connection], [], [])
    if process not in ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # the client was killed
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


# ---- in the process of a command -------------------------------------------------------------------------------------


def become(argv: Sequence[str], env: Mapping[str, str], folder: str, descriptors: Sequence[int]) -> None:
    """Give this process what the client's would have after `exec`, except its process group and session."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    replace_env(env)
    wait_passively()  # as when Frog loads
    tempfile.tempdir = None
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # the module random reseeds itself
    is_python = os.path.basename(argv[0]) == "python"
    sys.orig_argv = list(argv) if is_python else [sys.executable, *argv]
    if argv[1:2] == ["-u"] and is_python:
        unbuffer()
        argv = argv[1:]
    sys.argv = list(argv[is_python:])
    if sys.argv[0] == "-m":
        sys.path[0] = folder
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0])) if is_python else os.path.dirname(argv[0])
    del sys.modules["frog.cli"]  # it prepares signals when it loads


class ForkedProgram(ForkedRank):
    """A program of `frog run`, forked for it, with the part of the `subprocess.Popen` interface that it uses."""

    stdout: BinaryIO | None = None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Programs:
    """Starts the programs of a command by its fork server, if nothing else than the time could differ.

    These are the agents and the store of `frog run`. The `frog run` of a fault's trial is started by `server.py`.
    """

    def __init__(self, server: ForkServer, address: str, installed: str) -> None:
        self._server, self._env, self._address = server, child_env(), f"{address}:{installed}"

    def start(self, command: Sequence[str], env: Mapping[str, str], **options: Any) -> Any:
        """Start a process as `subprocess.Popen` does, in its place in modules of Frog."""
        if list(command[:4]) == [sys.executable, "-P", "-m", "frog.cli"]:
            warm = {"PATH": f"{HERE / 'bin'}{os.pathsep}{env['PATH']}", "FROG_TEST_SERVER": self._address}
            return subprocess.Popen([str(HERE / "bin" / "frog"), *command[4:]], env={**env, **warm}, **options)
        forked = None
        if differs_only_in(_OF_AN_AGENT, env, self._env):
            forked = self._fork(list(command), dict(env), **options)
        return forked or subprocess.Popen(command, env=env, **options)

    def _fork(
        self, command: list[str], env: dict[str, str], start_new_session: bool = False, **options: Any
    ) -> ForkedProgram | None:
        """Fork an agent or a store; return None for another program, and if the server cannot fork it."""
        namespaces: list[str] = []
        if command[1:4] == ["-P", "-m", "frog.launch.network.namespaces"]:
            at = command.index("--")
            namespaces, command = command[4:at], command[at + 1 :]
        module = command[command.index("-m") + 1] if "-m" in command else ""
        if not start_new_session or module not in ("frog.launch.torchrun.agent", "frog.launch.torchrun.store"):
            return None
        if options == {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}:
            return self._fork_with_pipe([command, env, namespaces])
        if options.keys() == {"pass_fds"}:
            return fork_directly(command, env, options["pass_fds"])
        return self._ask([command, env, namespaces, ""]) if not options else None

    def _ask(self, task: list[Any]) -> ForkedProgram | None:
        take_orphans(True)
        words = [sys.executable, "-u", str(HERE / "forked_program.py"), json.dumps(task)]
        forked = self._server.fork(words, self._env)
        take_orphans(False)
        return None if forked is None else ForkedProgram(forked.pid)

    def _fork_with_pipe(self, task: list[Any]) -> ForkedProgram | None:
        """Fork a program whose output this process reads."""
        reading, writing = os.pipe()
        with open(writing, "wb"):
            forked = self._ask([*task, f"/proc/{os.getpid()}/fd/{writing}"])
            if forked is None:
                os.close(reading)
                return None
            wait_for_byte(reading, forked.pid)
        forked.stdout = open(reading, "rb")  # noqa: SIM115
        return forked


def wait_for_byte(reading: int, pid: int) -> None:
    """Read the byte that a process writes first, unless it ends before."""
    process = os.pidfd_open(pid)
    ready, _, _ = select.select([reading, process], [], [], 60)
    os.close(process)
    if reading in ready:
        os.read(reading, 1)


def fork_directly(command: list[str], env: dict[str, str], descriptors: Sequence[int]) -> ForkedProgram | None:
    """Fork a program from this process, with its standard files and these."""
    if threading.active_count() > 1:
        return None
    if (pid := os.fork()) != 0:
        return ForkedProgram(pid)
    try:
        os.setsid()
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number not in descriptors:
                with contextlib.suppress(OSError):
                    os.close(number)
        forked_program.run(command, env, [], "")
    finally:
        os._exit(1)


def take_orphans(on: bool) -> None:
    """Adopt orphans among the descendants, or no longer: a process of the fork server is one for a moment."""
    ctypes.CDLL(None).prctl(36, int(on), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def fork_programs(address: str, installed: str) -> None:
    """Let `frog run` fork its programs, and `frog chaos` and `frog drill` start theirs by the server."""
    if (server := start_fork_server(None)) is not None:
        take_orphans(False)
        start = Programs(server, address, installed).start
        for module in (frog.launch.node_agents, frog.launch.harness):
            vars(module)["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": start})


def execute(path: str) -> None:
    """Execute an installed program or a script; for `-m`, the module that the next argument names."""
    if path == "-m":
        del sys.argv[0]
        sys.modules.pop(sys.argv[0], None)  # it was only imported for its dependencies
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    module = ModuleType("__main__")
    module.__file__ = os.path.abspath(path)
    text = Path(path).read_bytes()
    sys.modules["__main__"] = module
    exec(compile(text, module.__file__, "exec"), vars(module))


def run(path: str) -> NoReturn:
    """Run a program, and exit as Python does, but without unloading every module."""
    pid, code = os.getpid(), 0
    try:
        execute(path)
    except SystemExit as end:
        if os.getpid() != pid or not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    except Exception as error:
        inside = error.__traceback__
        for _ in (run, execute):
            inside = inside.tb_next if inside else None
        sys.excepthook(type(error), error.with_traceback(inside), inside)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    leave(code)


def is_loaded(argv: Sequence[str]) -> bool:
    """Return False for `python [-u] -m MODULE` of a module that this process has not loaded."""
    words = argv[2:] if argv[1:2] == ["-u"] else argv[1:]
    is_module = os.path.basename(argv[0]) == "python" and words[:1] == ["-m"]
    return not is_module or (len(words) > 1 and words[1] in sys.modules)


def main(address: str) -> None:
    surroundings = runpy.run_path(str(HERE / "bin" / "frog"))["surroundings"]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        print(os.getpid(), flush=True)
        gc.freeze()
        use_huge_pages()
        connection = serve(listening)
    data, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
    argv, env, folder, inherited = marshal.loads(data)
    if not is_loaded(argv) or inherited != surroundings or not differs_only_in(_MAY_DIFFER, env, LOADED_WITH):
        os._exit(0)  # the client starts a new program
    if (pid := os.fork()) != 0:
        for descriptor in descriptors:
            os.close(descriptor)
        supervise(connection, pid)
    connection.close()
    become(argv, env, folder, descriptors)
    bin_folder = os.path.dirname(argv[0])
    if os.path.basename(argv[0]) == "frog" or sys.argv[:2] == ["-m", "frog.cli"]:
        fork_programs(address, os.path.join(bin_folder, "frog"))
    run(sys.argv[0])


if __name__ == "__main__":
    main(sys.argv[1])
