"""Bounds of a learner's process: what it may touch, and whether it has changed what it must not.

An audit hook of the interpreter hears of each file that is opened, each program that is started, each fork, and more.
It cannot be taken away again, and no Python code runs around it. What goes out of bounds is reported to the judge at
once, and refused: to catch the error does not help.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]
import _posixsubprocess
import _signal  # type: ignore[import-not-found]
import builtins
import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from frog.core.namespaces import FILES, mount_memory, separate_mounts, unshare_as
from frog.learn.grader.limits import MOST_SCRATCH_BYTES, SHARED_MEMORY

_STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "os.startfile"}
_FORKS = {"os.fork", "os.forkpty"}
_SIGNALS = {"os.kill", "os.killpg", "signal.pthread_kill"}
_LOOKS_INSIDE = {
    "sys.addaudithook",
    "sys.settrace",
    "sys.setprofile",
    "sys.monitoring.register_callback",
    "sys._current_frames",
    "sys._current_exceptions",
    "gc.get_objects",
    "gc.get_referrers",
    "gc.get_referents",
    "ctypes.dlopen",
    "ctypes.dlsym",
    "ctypes.dlsym/handle",
    "ctypes.call_function",
    "ctypes.string_at",
    "ctypes.wstring_at",
}
_LOADS = {"ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle"}
"""What a package may do while it is imported."""
_FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
"""Attributes from which the way leads to all frames."""
_GIVE_FRAMES = {
    "inspect": {"currentframe", "stack", "trace", "getouterframes", "getinnerframes"},
    "traceback": {"walk_stack", "walk_tb"},
    "logging": {"currentframe", "<lambda>"},
}
"""Functions of the library that give frames to who calls them; others only look at them."""
_CHANGES = {
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.truncate": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.utime": 1,
    "shutil.rmtree": 1,
    "shutil.move": 2,
    "sqlite3.connect": 1,
}
"""Events that change files, and how many of their first arguments are paths."""
_UNHEARD = [
    (_posixsubprocess, "fork_exec"),
    (subprocess, "_fork_exec"),
    (signal, "pidfd_send_signal"),
    (_signal, "pidfd_send_signal"),
    (_posixshmem, "shm_open"),
]
"""Functions that start programs, reach processes or make files outside, and raise no event."""
_RELOADED = {"_posixsubprocess", "_signal", "_posixshmem"}
_HOMES = (os.__file__, torch.__path__[0], str(Path(__file__).parents[3]))
_LIBRARIES = (*(os.path.dirname(home) + os.sep for home in _HOMES), "<frozen ", "<ranks.py>")
"""Where code begins that is neither the learner's nor made of a text."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LISTS = {"os.listdir", "os.scandir", "glob.glob"}
_LOOPBACK = ("127.", "::1", "localhost", "::ffff:127.")
_ANYONES = ("/dev/null", "/dev/tty")

Report = Callable[[str, str], None]
"""Takes an id (`looked-it-up`) and what was seen."""


def set_bounds(report: Report, labs: Path, scratch: Path) -> None:
    """From now on and for good, this process may not leave `scratch`, nor look into `labs`."""
    bounds = _Bounds(report, os.path.realpath(labs), os.path.realpath(scratch))
    for module, name in _UNHEARD:
        if hasattr(module, name):
            setattr(module, name, functools.partial(bounds.refuse, "outside", f"It called {name}."))
    sys.addaudithook(bounds)


def hide(folder: Path) -> None:
    """Show this process nothing there, where the system allows that: what C++ opens is not heard by the hook.

    It also gets a /dev/shm of its own, which ends with it.
    """
    with contextlib.suppress(OSError):
        unshare_as(FILES, os.geteuid(), os.getegid())
        separate_mounts()
        mount_memory(str(folder), 4096, "0")
        if SHARED_MEMORY.is_dir():
            mount_memory(str(SHARED_MEMORY), MOST_SCRATCH_BYTES)


class _Bounds:
    """What is refused, by event."""

    def __init__(self, report: Report, labs: str, scratch: str) -> None:
        self._report, self._labs, self._scratch = report, labs, scratch
        self._looking: set[int] = set()
        """Threads that are looking for who asks for a frame."""
        self._checks: dict[str, Callable[[str, tuple[Any, ...]], None]] = {
            "open": self._open,
            "import": self._import,
            "socket.connect": self._connect,
            **dict.fromkeys(_LISTS, self._list),
            **dict.fromkeys(_FORKS, self._fork),
            **dict.fromkeys(_STARTS, self._start),
            **dict.fromkeys(_SIGNALS, self._signal),
            **dict.fromkeys(_CHANGES, self._change),
            **dict.fromkeys(_LOOKS_INSIDE, self._look),
            "object.__setattr__": self._set,
            "object.__getattr__": self._get,
            "sys._getframe": self._frame,
        }

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if (check := self._checks.get(event)) is not None:
            check(event, args)

    def refuse(self, what: str, seen: str, *_: Any, **__: Any) -> None:
        self._report(what, seen)
        raise PermissionError(f"{seen} The course does not let an exercise do that.")

    def _is_own(self, path: str) -> bool:
        return _is_in(path, self._scratch) or path.startswith(_ANYONES)

    def _open(self, event: str, args: tuple[Any, ...]) -> None:
        path, flags = _place(args[0]), args[2]
        if not path:
            return
        if _is_in(path, self._labs):
            self.refuse("looked-it-up", f"It opened {os.path.basename(path)}, which belongs to the course.")
        self._other_process(path)
        writes = isinstance(flags, int) and flags & _WRITES
        if (writes or os.path.isdir(path)) and not self._is_own(path):
            self.refuse("outside", f"It opened {path}{' for writing' if writes else ''}.")

    def _list(self, event: str, args: tuple[Any, ...]) -> None:
        if _is_in(_place(args[0]), self._labs):
            self.refuse("looked-it-up", "It listed the folders of the course.")
        self._other_process(_place(args[0]))

    def _other_process(self, path: str) -> None:
        top, _, rest = path.removeprefix("/proc/").partition("/")
        if path.startswith("/proc/") and top.isdecimal() and int(top) != os.getpid():
            self.refuse("looked-it-up", f"It looked at another process ({rest or top}).")

    def _import(self, event: str, args: tuple[Any, ...]) -> None:
        if str(args[0]).startswith(("frog.learn.grader", "frog.learn")):
            self.refuse("looked-it-up", f"It imported {args[0]}.")
        if args[0] in _RELOADED:
            self.refuse("outside", f"It loaded {args[0]} anew.")

    def _connect(self, event: str, args: tuple[Any, ...]) -> None:
        address = args[1]
        if isinstance(address, tuple) and not str(address[0]).startswith(_LOOPBACK):
            self.refuse("outside", f"It connected to {address[0]}.")

    def _fork(self, event: str, args: tuple[Any, ...]) -> None:
        self.refuse("too-many-processes", "It forked a process.")

    def _start(self, event: str, args: tuple[Any, ...]) -> None:
        if _is_import(sys._getframe(2)):  # matplotlib asks fc-list for fonts, and does without
            raise PermissionError(f"{str(args[0])[:60]}: the course does not let a package start programs.")
        self.refuse("outside", f"It started a program ({event}: {str(args[0])[:60]}).")

    def _signal(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "os.killpg" or args[0] != os.getpid():
            self.refuse("outside", f"It sent a signal to another process ({event}).")

    def _change(self, event: str, args: tuple[Any, ...]) -> None:
        for path in map(_place, args[: _CHANGES[event]]):
            if path and not self._is_own(path):
                self.refuse("outside", f"It changed {path} ({event}).")

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        if not (event in _LOADS and _is_import(sys._getframe(2))):
            self.refuse("patched", f"It reached into the interpreter ({event}).")

    def _set(self, event: str, args: tuple[Any, ...]) -> None:
        if args[1] == "__code__":
            self.refuse("patched", f"It gave {getattr(args[0], '__name__', 'a function')} other code.")

    def _get(self, event: str, args: tuple[Any, ...]) -> None:
        if args[1] in _FRAMES:
            self._frame(event, args, 3)

    def _frame(self, event: str, args: tuple[Any, ...], depth: int = 2) -> None:
        """The library looks at frames all the time: who writes logs, warns, or prints a traceback."""
        thread = threading.get_ident()
        if thread in self._looking:  # this very function
            return
        self._looking.add(thread)
        try:
            gives = _gives_frame(sys._getframe(depth))
        finally:
            self._looking.discard(thread)
        if gives:
            self.refuse("patched", f"It looked at the functions that called it ({event}).")


def _gives_frame(caller: FrameType) -> bool:
    """Whether a frame that is asked for here goes to code that is none of the library's."""
    library = caller.f_globals.get("__name__")
    if _is_library(caller) and library not in _GIVE_FRAMES:
        return False
    entry, asks = None, caller
    while asks.f_back is not None and _is_library(asks) and asks.f_globals.get("__name__") == library:
        entry, asks = asks, asks.f_back
    return not _is_library(asks) and (entry is None or entry.f_code.co_name in _GIVE_FRAMES[str(library)])


def _is_import(caller: FrameType | None) -> bool:
    """Whether code of a library asks for something while it is being imported."""
    while caller is not None and _is_library(caller):
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            return True
        caller = caller.f_back
    return False


def _is_library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_LIBRARIES)


def _place(path: Any) -> str:
    """Where a path leads; "" for what is none, such as the number of an open file."""
    return os.path.realpath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) and path else ""


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}{os.sep}")


class Snapshot:
    """Functions and classes as they were before the learner's code came."""

    def __init__(self, modules: list[ModuleType | type]) -> None:
        self._before = [
            (place, {k: v for k, v in vars(place).items() if isinstance(place, type) or callable(v)})
            for place in [*modules, builtins]
        ]

    def changed(self) -> str | None:
        """The first that is another now: `torch.equal`."""
        for place, before in self._before:
            now = vars(place)
            for name, value in before.items():
                if now.get(name) is not value:
                    return f"{place.__name__}.{name}"
            if isinstance(place, type) and (new := now.keys() - before.keys() - {"__slotnames__"}):
                return f"{place.__name__}.{min(new)}"
        return None
