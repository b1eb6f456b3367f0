"""The guard of a learner's process: it refuses forbidden actions and detects forbidden changes.

It is made for mistakes and shortcuts, not for attackers: a check runs a learner's code as the learner, so grade only
what you would run yourself. It has two layers.

- An audit hook of the interpreter sees each opened file, each started program, each fork, and more. It cannot be
  removed. It reports each violation to the judge immediately and refuses it: catching the error does not help. It does
  not see what C++ does, nor which folder a relative path starts from if a descriptor (`dir_fd`) names it.
- On Linux the kernel keeps the process from changing files elsewhere (Landlock), from seeing the course's files (a
  mount of its own) and from reaching a network (the judge has one of its own), where the system allows it. What C++
  tries then fails, but it is not reported.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]
import _posixsubprocess
import _signal  # type: ignore[import-not-found]
import builtins
import contextlib
import functools
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

from frog.core.landlock import allow_writes_only_below
from frog.core.namespaces import (
    FILES,
    NETWORK,
    loopback_up,
    mount_memory,
    separate_mounts,
    unshare_as,
    unshare_as_same_user,
)
from frog.launch.resource_limits import MOST_SCRATCH_BYTES, SHARED_MEMORY

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
"""Events that are allowed while a package is being imported."""
_FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
"""Attributes that give access to frames."""
_DEFAULTS = {"__defaults__", "__kwdefaults__"}
_GIVE_FRAMES = {
    "asyncio.base_tasks": {"_task_get_stack"},
    "bdb": {"get_stack"},
    "inspect": {"currentframe", "stack", "trace", "getouterframes", "getinnerframes"},
    "logging": {"currentframe", "<lambda>"},
    "torch.fx.proxy": {"_find_user_frame"},
    "traceback": {"walk_stack", "walk_tb", "extract"},
}
"""Library functions that return frames, or their variables, to their callers; others only inspect them."""
_CHANGES: dict[str, dict[int, int | None]] = {
    "os.remove": {0: 1},
    "os.rename": {0: 2, 1: 3},
    "os.rmdir": {0: 1},
    "os.mkdir": {0: 2},
    "os.truncate": {0: None},
    "os.chmod": {0: 2},
    "os.chown": {0: 3},
    "os.link": {0: 2, 1: 3},
    "os.symlink": {0: None, 1: 2},
    "os.utime": {0: 3},
    "shutil.rmtree": {0: 1},
    "shutil.move": {0: None, 1: None},
    "sqlite3.connect": {0: None},
}
"""Events that change files: the place of each path among the arguments, and that of the descriptor of its folder."""
_SENDS = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_RESOLVES = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
_UNHEARD = [
    (_posixsubprocess, "fork_exec"),
    (subprocess, "_fork_exec"),
    (signal, "pidfd_send_signal"),
    (_signal, "pidfd_send_signal"),
    (_posixshmem, "shm_open"),
]
"""Functions that start programs, affect processes or create files outside, without raising an event."""
_RELOADED = {"_posixsubprocess", "_signal", "_posixshmem"}
_HOMES = (os.__file__, torch.__path__[0], str(Path(__file__).parents[3]))
_INSTALLED = tuple(
    os.path.realpath(home) + os.sep for home in {sys.prefix, sys.base_prefix, *map(os.path.dirname, _HOMES)}
)
"""The folders from which compiled modules may be loaded."""
_open = open  # the built-in one, whatever a learner's code puts in its place
_LIBRARIES = (*(os.path.dirname(home) + os.sep for home in _HOMES), "<frozen ", "<ranks.py>")
"""Prefixes of library code's file names, as opposed to the learner's code and code compiled from strings."""
_ADDED_BY_PYTHON = {"__slotnames__", "__annotations__"}
"""Attributes that Python itself adds to a class."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LISTS = {"os.listdir", "os.scandir", "glob.glob"}
_ANYONES = ("/dev/null", "/dev/tty")

Report = Callable[[str, str], None]
"""Takes an id (`looked-it-up`) and a description of the violation."""


def set_bounds(report: Report, labs: Path, scratch: Path) -> None:
    """Confine this process permanently: no file access outside `scratch`, no look into `labs`."""
    bounds = _Bounds(report, os.path.realpath(labs), os.path.realpath(scratch))
    for module, name in _UNHEARD:
        if hasattr(module, name):
            setattr(module, name, functools.partial(bounds.refuse, "outside", f"It called {name}."))
    sys.addaudithook(bounds)


def leave_network() -> None:
    """Give this process and its later children a network without any other machine, if the system allows it.

    Assumes: this process has one thread.
    """
    with contextlib.suppress(OSError):
        unshare_as_same_user(NETWORK)
        loopback_up()


def keep_files(places: Sequence[Path]) -> None:
    """Keep this process and its later children from changing files outside `places`, if the system allows it."""
    allow_writes_only_below([*places, SHARED_MEMORY, *map(Path, _ANYONES)])


def hide(folder: Path) -> None:
    """Hide a folder from this process, if the system allows it: the hook does not see files opened from C++.

    Also gives the process a private /dev/shm, which disappears with it.
    """
    with contextlib.suppress(OSError):
        unshare_as(FILES, os.geteuid(), os.getegid())
        separate_mounts()
        mount_memory(str(folder), 4096, "0")
        if SHARED_MEMORY.is_dir():
            mount_memory(str(SHARED_MEMORY), MOST_SCRATCH_BYTES)


class _Bounds:
    """The rules, by event."""

    def __init__(self, report: Report, labs: str, scratch: str) -> None:
        self._report, self._labs, self._scratch = report, labs, scratch
        self._looking: set[int] = set()
        """Threads in which the hook itself is inspecting frames."""
        self._checks: dict[str, Callable[[str, tuple[Any, ...]], None]] = {
            "open": self._open,
            "import": self._import,
            "socket.bind": self._bind,
            **dict.fromkeys(_SENDS, self._connect),
            **dict.fromkeys(_RESOLVES, self._resolve),
            **dict.fromkeys(_LISTS, self._list),
            **dict.fromkeys(_FORKS, self._fork),
            **dict.fromkeys(_STARTS, self._start),
            **dict.fromkeys(_SIGNALS, self._signal),
            **dict.fromkeys(_CHANGES, self._change),
            **dict.fromkeys(_LOOKS_INSIDE, self._look),
            "compile": self._compile,
            "code.__new__": self._compile,
            "object.__setattr__": self._set,
            "object.__getattr__": self._get,
            "sys._getframe": self._frame,
        }

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if (check := self._checks.get(event)) is not None:
            check(event, args)

    def refuse(self, what: str, seen: str, *_: Any, **__: Any) -> None:
        self._report(what, seen)
        raise PermissionError(f"{seen} The grader does not allow this.")

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
            self.refuse("looked-it-up", "It listed the course's folders.")
        self._other_process(_place(args[0]))

    def _other_process(self, path: str) -> None:
        top, _, rest = path.removeprefix("/proc/").partition("/")
        if path.startswith("/proc/") and top.isdecimal() and int(top) != os.getpid():
            self.refuse("looked-it-up", f"It inspected another process ({rest or top}).")

    def _import(self, event: str, args: tuple[Any, ...]) -> None:
        if str(args[0]).startswith(("frog.learn.grader", "frog.learn")):
            self.refuse("looked-it-up", f"It imported {args[0]}.")
        if args[0] in _RELOADED:
            self.refuse("outside", f"It reloaded {args[0]}.")
        if args[1] and not (library := os.path.realpath(args[1])).startswith(_INSTALLED):
            self.refuse("outside", f"It loaded {library}, which is compiled code.")

    def _connect(self, event: str, args: tuple[Any, ...]) -> None:
        address = args[1]
        if isinstance(address, tuple) and not _is_this_machine(address[0]):
            self.refuse("outside", f"It connected to {address[0]} ({event}).")

    def _bind(self, event: str, args: tuple[Any, ...]) -> None:
        address = args[1]
        if isinstance(address, tuple) and not (address[0] and _is_this_machine(address[0])):
            self.refuse(
                "outside", f"It listened on {address[0] or 'all addresses'}, which others reach; use 127.0.0.1."
            )

    def _resolve(self, event: str, args: tuple[Any, ...]) -> None:
        if not _is_this_machine(args[0]) and _address(args[0]) is None:
            self.refuse("outside", f"It looked up the address of {args[0]}.")

    def _fork(self, event: str, args: tuple[Any, ...]) -> None:
        self.refuse("too-many-processes", "It forked a process.")

    def _start(self, event: str, args: tuple[Any, ...]) -> None:
        if _is_import(sys._getframe(2)):  # matplotlib asks fc-list for fonts, and works without it
            raise PermissionError(f"{str(args[0])[:60]}: the grader does not allow a package to start programs.")
        self.refuse("outside", f"It started a program ({event}: {str(args[0])[:60]}).")

    def _signal(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "os.killpg" or args[0] != os.getpid():
            self.refuse("outside", f"It sent a signal to another process ({event}).")

    def _change(self, event: str, args: tuple[Any, ...]) -> None:
        for number, folder in _CHANGES[event].items():
            path = _place(args[number], args[folder] if folder is not None and folder < len(args) else None)
            if path and not self._is_own(path):
                self.refuse("outside", f"It changed {path} ({event}).")

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        if not (event in _LOADS and _is_import(sys._getframe(2))):
            self.refuse("patched", f"It accessed the interpreter's internals ({event}).")

    def _compile(self, event: str, args: tuple[Any, ...]) -> None:
        """Refuse code that claims to be a library's.

        Imports compile a library's own code, and Python the part of a line that a traceback underlines.
        """
        source, name = args[0], os.fsdecode(args[1]) if isinstance(args[1], (str, bytes)) else ""
        if name.startswith(_LIBRARIES) and not (_is_import(sys._getframe(2)) or _is_part_of_line(source, name)):
            self.refuse("patched", f"It compiled code as if it were in {name}.")

    def _set(self, event: str, args: tuple[Any, ...]) -> None:
        name = str(args[1])
        if name == "__code__" or (name in _DEFAULTS and self._is_foreign(args[0], name, sys._getframe(2))):
            what = getattr(args[0], "__name__", "a function")
            self.refuse("patched", f"It replaced the {name.strip('_')} of {what}.")

    def _is_foreign(self, function: FunctionType, attribute: str, caller: FrameType) -> bool:
        """Return True if code outside the library sets an attribute of a library's function."""
        own = _is_library(caller) and _names(caller, attribute)
        return function.__code__.co_filename.startswith(_LIBRARIES) and not own

    def _get(self, event: str, args: tuple[Any, ...]) -> None:
        if args[1] in _FRAMES:
            self._frame(event, args, 3)

    def _frame(self, event: str, args: tuple[Any, ...], depth: int = 2) -> None:
        """Refuse access to frames, except by libraries: logging, warnings and tracebacks inspect them all the time."""
        thread = threading.get_ident()
        if thread in self._looking:  # this function's own access
            return
        self._looking.add(thread)
        try:
            gives = _gives_frame(sys._getframe(depth), str(args[1]) if len(args) > 1 else "_getframe")
        finally:
            self._looking.discard(thread)
        if gives:
            self.refuse("patched", f"It inspected the functions that called it ({event}).")


def _gives_frame(caller: FrameType, what: str) -> bool:
    """Return True if a requested frame, `what` in the caller's code, goes to code outside the library."""
    library = caller.f_globals.get("__name__")
    if not _is_library(caller) or not _names(caller, what):  # such as functools, with sys._getframe as a callback
        return True
    if library not in _GIVE_FRAMES:
        return False
    entry, asks = None, caller
    while asks.f_back is not None and _is_library(asks) and asks.f_globals.get("__name__") == library:
        entry, asks = asks, asks.f_back
    given = entry is None or entry.f_code.co_name in _GIVE_FRAMES[str(library)]
    return given and not (_is_library(asks) and entry is not None and _names(asks, entry.f_code.co_name))


def _names(frame: FrameType, name: str) -> bool:
    """Return True if a function's own code names an attribute, and does not only call what it has been given."""
    return name in frame.f_code.co_names or name in frame.f_code.co_consts


def _is_part_of_line(source: Any, path: str) -> bool:
    """True if `source` is a part of one line of a file."""
    part = os.fsdecode(source) if isinstance(source, (str, bytes)) else ""
    try:
        with _open(path, encoding="utf-8", errors="replace") as file:
            return bool(part) and any(part in line for line in file)
    except OSError:
        return False


def _is_import(caller: FrameType | None) -> bool:
    """Return True if the caller is library code that is being imported."""
    while caller is not None and _is_library(caller):
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            return True
        caller = caller.f_back
    return False


def _is_library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_LIBRARIES)


def _place(path: Any, folder: int | None = None) -> str:
    """Resolve a path; return "" for a value that is not a path, such as a file descriptor.

    folder: the descriptor of the folder that a relative path starts from; None or -1: the current folder.
    """
    if not isinstance(path, (str, bytes, os.PathLike)) or not path:
        return ""
    start = f"/proc/self/fd/{folder}" if folder is not None and folder >= 0 else ""
    return os.path.realpath(os.path.join(start, os.fsdecode(path)))


def _is_this_machine(host: Any) -> bool:
    """Return True for loopback addresses, and for the names that mean this machine."""
    address = _address(host)
    return host in (None, "", b"", "localhost", socket.gethostname()) or (address is not None and address.is_loopback)


def _address(host: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address in numbers, which needs no lookup; None for a name, such as 127.example.org."""
    try:
        return ipaddress.ip_address(str(host).removeprefix("::ffff:"))
    except ValueError:
        return None


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}{os.sep}")


class Snapshot:
    """Functions and classes as they were before the learner's code was loaded, and an exercise's constants."""

    def __init__(self, modules: list[ModuleType | type], exercise: ModuleType) -> None:
        self._before = [
            (place, {k: v for k, v in vars(place).items() if isinstance(place, type) or callable(v)})
            for place in [*modules, builtins]
        ]
        self._exercise, self._constants = exercise, _constants_of(exercise)

    def changed(self) -> str | None:
        """Return the name of the first changed function, such as `torch.equal`; None if all are unchanged."""
        for place, before in self._before:
            now = vars(place)
            for name, value in before.items():
                if now.get(name) is not value:
                    return f"{place.__name__}.{name}"
            if isinstance(place, type) and (new := now.keys() - before.keys() - _ADDED_BY_PYTHON):
                return f"{place.__name__}.{min(new)}"
        constants = _constants_of(self._exercise)
        for name, parts in self._constants.items():
            now_parts = constants.get(name, [])
            if len(parts) != len(now_parts) or any(a is not b for a, b in zip(parts, now_parts, strict=True)):
                return f"{self._exercise.__name__}.{name}"
        return None


def _constants_of(module: ModuleType) -> dict[str, list[Any]]:
    """Return the parts of each variable in capital letters; other variables may change while the exercise runs."""
    return {name: list(_parts_of(value)) for name, value in vars(module).items() if name.isupper()}


def _parts_of(value: Any) -> Iterator[Any]:
    """Yield the types, keys and values that a nested dict, list or tuple consists of."""
    yield type(value) if type(value) in (dict, list, tuple) else value
    if type(value) is dict:
        value = [part for pair in value.items() for part in pair]
    for part in value if type(value) in (list, tuple) else ():
        yield from _parts_of(part)
