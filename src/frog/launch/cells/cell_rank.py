"""One rank of a cell world: runs cells in its main thread, and obeys the world in a second one.

    python -m frog.launch.cells.cell_rank        started by cell_launcher.py, in the environment of a rank

A collective of gloo waits in C++, where no signal reaches it. To end one, the second thread closes the sockets of the
process groups: the collective fails, on this rank and on its peers. Then all ranks make the process group again.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import linecache
import os
import queue
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from frog.core.env import WorldEnv, bind_loopback, variable, world_env
from frog.core.files import socket_name
from frog.core.processes import leave_with_parent
from frog.launch.cells import variables_rank
from frog.launch.cells.calls_rank import CallRecorder
from frog.launch.cells.cell_places import CELL_FILE, place_text
from frog.launch.cells.messages import Answer, CellError, Request, receive_request, send
from frog.launch.cells.values_rank import describe

_MOST_LINES = 24
"""Most lines of a traceback."""
_NO_GROUP = "Default process group has not been initialized"
_TWICE = "trying to initialize the default process group twice"


class CellRank:
    """A rank: its namespace, its connection to the world, and its process group."""

    def __init__(self, env: WorldEnv, connection: Connection) -> None:
        self.env, self._connection = env, connection
        self._sending = threading.Lock()
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._in_cell = False
        self._pid = os.getpid()
        self._server: Any = None
        self._main = threading.main_thread()
        module = ModuleType("__main__")
        sys.modules["__main__"] = module  # pickle finds the classes of the cells there
        self.namespace = vars(module)
        self.namespace["__builtins__"] = __builtins__
        self._code: list[tuple[str, str]] = []
        self._calls = CallRecorder(_line_of_frame)

    # ---- the main thread ---------------------------------------------------------------------------------------------

    def serve(self) -> NoReturn:
        """Answer requests until the world ends."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        signal.signal(signal.SIGTERM, self._on_terminate)
        threading.Thread(target=self._obey, name="frog world", daemon=True).start()
        self._join(0)
        self._answer(Answer(number=0, rank=self.env.rank, pid=os.getpid(), device=_device()))
        while True:
            request = self._requests.get()
            self._answer(self._do(request))

    def _do(self, request: Request) -> Answer:
        mine = Answer(number=request.number, rank=self.env.rank)
        try:
            if request.act == "run":
                return self._run(request)
            if request.act == "regroup":
                self._regroup(request.number)
                return Answer(number=mine.number, rank=mine.rank, lost=variables_rank.groups_in(self.namespace))
            if request.act == "save":
                return self._save(request)
            if request.act == "load":
                self._code = list(request.code)
                _remember([where for where, _ in request.code])
                lost = variables_rank.load(self.namespace, Path(request.path), request.code)
                return Answer(number=mine.number, rank=mine.rank, lost=lost, names=self._names())
            return self._get(request)
        except Exception as error:
            return Answer(number=mine.number, rank=mine.rank, error=_described(error))

    def _run(self, request: Request) -> Answer:
        """Run a cell. The value of its last line, if that is an expression, is described and kept as `_`."""
        source = Path(request.path).read_text(encoding="utf-8")
        self._calls.start()
        start = time.monotonic()
        value, raised = self._guarded(source, request.path)
        duration_s = time.monotonic() - start
        error = None if raised is None else _described(raised)
        if isinstance(raised, SystemExit):
            error = CellError(type="SystemExit", message=str(raised.code)) if raised.code else None
        text, tensors = describe(value) if value is not None else (None, [])
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        kept = variables_rank.definitions(source)
        if kept:
            self._code = [*(each for each in self._code if each[0] != request.path), (request.path, kept)]
        return Answer(
            number=request.number,
            rank=self.env.rank,
            value=text,
            tensors=tensors,
            error=error,
            calls=self._calls.stop(),
            names=self._names(),
            in_group=dist.is_initialized(),
            duration_s=duration_s,
        )

    def _guarded(self, source: str, path: str) -> tuple[Any, BaseException | None]:
        """Run a cell; return its value, or what it raised. An interrupt may arrive at any moment."""
        try:
            try:
                self._in_cell = True
                value = self._execute(source, path)
                self._in_cell = False
                return value, None
            except BaseException as raised:
                self._in_cell = False
                return None, raised
        except KeyboardInterrupt as interrupt:  # between two of the lines above
            self._in_cell = False
            return None, interrupt

    def _execute(self, source: str, path: str) -> Any:
        """Run the statements of a cell; return the value of a last expression, or None."""
        tree = ast.parse(source, path)
        last = tree.body[-1] if tree.body else None
        shown = None
        if isinstance(last, ast.Expr) and not source.rstrip().endswith(";"):
            tree.body.pop()
            shown = compile(ast.Expression(last.value), path, "eval", dont_inherit=True)
        exec(compile(tree, path, "exec", dont_inherit=True), self.namespace)
        if shown is None:
            return None
        value = eval(shown, self.namespace)
        if value is not None:
            self.namespace["_"] = value
        return value

    def _names(self) -> list[str]:
        return sorted(name for name in self.namespace if not name.startswith("_"))

    def _save(self, request: Request) -> Answer:
        lost = variables_rank.save(self.namespace, Path(request.path))
        return Answer(number=request.number, rank=self.env.rank, lost=lost, code=self._code, names=self._names())

    def _get(self, request: Request) -> Answer:
        """Write the value of an expression to a file, on the CPU."""
        try:
            value = eval(request.name, self.namespace)
        except Exception as error:
            return Answer(number=request.number, rank=self.env.rank, error=_described(error))
        torch.save(value, request.path)
        return Answer(number=request.number, rank=self.env.rank)

    # ---- the process group -------------------------------------------------------------------------------------------

    def _join(self, epoch: int) -> None:
        """Initialize the process group. Each epoch has its own keys in the store, and names of its own for groups."""
        env = self.env
        assert env.master_port is not None
        bind_loopback(env.master_addr)
        if self._server is None and env.rank == 0:
            self._server = TCPStore(env.master_addr, env.master_port, is_master=True, wait_for_workers=False)
        store = TCPStore(env.master_addr, env.master_port, is_master=False, wait_for_workers=False)
        dist.distributed_c10d._world.group_count = 100 * epoch
        keys = PrefixStore(f"epoch {epoch}", store)
        dist.init_process_group(_backend(env), store=keys, rank=env.rank, world_size=env.world_size)

    def _regroup(self, epoch: int) -> None:
        with contextlib.suppress(Exception):  # its connections are closed
            if dist.is_initialized():
                dist.destroy_process_group()
        self._join(epoch)

    # ---- the second thread -------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        while True:
            try:
                request = receive_request(self._connection)
            except (EOFError, OSError):
                os._exit(1)  # the world has ended
            if request.act == "exit":
                os._exit(0)
            elif request.act == "interrupt":
                signal.pthread_kill(self._main.ident or 0, signal.SIGINT)
            elif request.act == "abort":
                self._abort(request.store)
            elif request.act == "save" and request.at_once:
                self._answer(self._do(request))
            else:
                self._requests.put(request)

    def _answer(self, answer: Answer) -> None:
        with self._sending:
            try:
                send(self._connection, answer)
            except OSError:
                os._exit(1)

    def _abort(self, store: bool) -> None:
        """Close the connections of all process groups; store: also those to the store."""
        kept = [sock.fileno() for sock in _python_sockets()]
        for descriptor in _open_descriptors():
            if descriptor not in kept:
                self._close(descriptor, store)
        if dist.is_initialized() and "nccl" in dist.get_backend_config():
            with contextlib.suppress(Exception):
                dist.distributed_c10d._abort_process_group()

    def _close(self, descriptor: int, store: bool) -> None:
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return
            sock = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            return
        with sock, contextlib.suppress(OSError):
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                return
            ours, theirs = sock.getsockname()[1], sock.getpeername()[1]
            is_store = self.env.master_port in (ours, theirs)
            if not is_store or (store and theirs == self.env.master_port):
                sock.shutdown(socket.SHUT_RDWR)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._in_cell:
            raise KeyboardInterrupt

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        """Ignore the agent: the world ends its ranks itself, after it has kept their variables."""
        if os.getpid() != self._pid:  # a forked child, such as a DataLoader's worker
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def _python_sockets() -> list[socket.socket]:
    """Return the open sockets of the program's own Python code."""
    import gc

    return [each for each in gc.get_objects() if isinstance(each, socket.socket) and each.fileno() >= 0]


def _open_descriptors() -> list[int]:
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return [int(name) for name in os.listdir(folder) if name.isdigit() and int(name) > 2]


def _backend(env: WorldEnv) -> str:
    """Return gloo, and NCCL for tensors on GPUs if each rank of this node has a GPU of its own."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return "cpu:gloo,cuda:nccl" if gpus >= env.local_world_size and dist.is_nccl_available() else "gloo"


def _device() -> str:
    if not torch.cuda.is_available():
        return "cpu"
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def _remember(paths: list[str]) -> None:
    for path in paths:
        linecache.getlines(path)


def _line_of_frame(frame: FrameType | None) -> str:
    """Return the innermost line of a cell at or outside a frame, as `cell 3, line 2`."""
    while frame is not None:
        if CELL_FILE.search(frame.f_code.co_filename):
            return place_text(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def _described(error: BaseException) -> CellError:
    """Describe an exception, with only the cells' own lines of its traceback."""
    lines: list[str] = []
    for frame in traceback.extract_tb(error.__traceback__):
        if CELL_FILE.search(frame.filename):
            place = place_text(frame.filename, frame.lineno or 0)
            inside = "" if frame.name == "<module>" else f", in {frame.name}"
            lines += [f"{place}{inside}", *([f"    {frame.line}"] if frame.line else [])]
    message = str(error)
    if isinstance(error, SyntaxError) and error.lineno:
        lines = [place_text(error.filename or "", error.lineno), f"    {(error.text or '').strip()}"]
        message = error.msg
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES // 2], "...", *lines[-_MOST_LINES // 2 :]]
    if _TWICE in message:
        message += ": a world's ranks have one already, so leave out init_process_group"
    kind = type(error).__name__
    return CellError(type=kind, message=message[:4000], lines=lines, is_interrupt=isinstance(error, KeyboardInterrupt))


def _start_hooks() -> None:
    """Start the observer in a forked rank; in another one, Python has started it before this program."""
    if not (variable("FROG_OBSERVED_PID") or "").startswith(f"{os.getpid()}:"):
        for name in filter(None, (variable("FROG_HOOKS") or "").split(",")):
            importlib.import_module(name).install()


def main() -> NoReturn:
    """Join the world, and serve it."""
    leave_with_parent()
    _start_hooks()
    env = world_env()
    folder = Path(variable("FROG_CELLS") or ".")
    output = os.open(folder / "output" / f"rank_{env.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    sys.path.insert(0, os.getcwd())
    sys.argv = [""]
    with socket_name(folder / "socket") as name:
        connection = Client(name, "AF_UNIX")
    CellRank(env, connection).serve()


if __name__ == "__main__":
    main()
