"""Shows Frog's modules what a Mac would show them, in every Python process that has this folder on PYTHONPATH.

Only modules of Frog are deceived; torch and other packages still see Linux. `sys.platform` is "darwin", `os`, `signal`,
`socket`, `select` and `resource` lack the names that only Linux has, /proc, /sys and /dev/shm do not exist, and
multiprocessing spawns. docs/development/mac.md lists what is not imitated. A failure is a fault of Frog's; a pass is no
proof that a Mac works.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any

FROG = {"frog", "frog_labs", "frog_observer", "frog_simulated_gpus"}
HIDDEN = ("/proc", "/sys", "/dev/shm", "/run/user", "/etc/os-release")
LINUX_ONLY = {
    "os": """
        sched_getaffinity sched_setaffinity sched_getscheduler sched_setscheduler sched_getparam sched_setparam
        sched_param sched_rr_get_interval SCHED_BATCH SCHED_IDLE SCHED_RESET_ON_FORK pidfd_open P_PIDFD
        memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING posix_fadvise posix_fallocate fdatasync splice
        copy_file_range getrandom GRND_NONBLOCK eventfd eventfd_read eventfd_write unshare setns O_TMPFILE
        O_DIRECT O_PATH O_NOATIME O_LARGEFILE getxattr setxattr listxattr removexattr getresuid getresgid
        setresuid setresgid preadv2 pwritev2 RWF_HIPRI timerfd_create CLONE_NEWNS CLONE_NEWUSER CLONE_NEWNET
        CLONE_NEWPID CLONE_FS CLONE_FILES pipe2 waitid
    """,
    "signal": "pidfd_send_signal sigtimedwait sigwaitinfo SIGPOLL SIGPWR SIGSTKFLT SIGCLD SIGRTMIN SIGRTMAX",
    "socket": """
        SO_BINDTODEVICE SO_DOMAIN SO_PROTOCOL SO_MARK SO_PASSCRED SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK
        TCP_USER_TIMEOUT TCP_QUICKACK TCP_CORK TCP_DEFER_ACCEPT TCP_LINGER2 TCP_SYNCNT TCP_WINDOW_CLAMP
        TCP_CONGESTION TCP_INFO AF_NETLINK AF_PACKET AF_VSOCK AF_ALG MSG_NOSIGNAL MSG_CMSG_CLOEXEC MSG_MORE
        MSG_ERRQUEUE MSG_CONFIRM MSG_FASTOPEN SO_PRIORITY
    """,
    "select": "epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLET EPOLL_CLOEXEC EPOLLHUP EPOLLONESHOT",
    "resource": "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RUSAGE_THREAD",
    "sys": "",
    "platform": "",
}
INSTEAD: dict[tuple[str, str], Any] = {
    ("sys", "platform"): "darwin",
    ("platform", "system"): lambda: "Darwin",
    ("platform", "machine"): lambda: "arm64",
}


class OnAMac(ModuleType):
    """A module of Linux's Python without the names that a Mac's does not have."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        self.__dict__.clear()
        self.__dict__["_module"] = module
        self.__dict__["_gone"] = set(LINUX_ONLY[module.__name__].split())

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_module"]
        if name in self.__dict__["_gone"]:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r} (on a Mac)")
        return INSTEAD.get((module.__name__, name)) or getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_module"], name, value)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self.__dict__["_module"]) if name not in self.__dict__["_gone"]]


def _is_frog(names: Mapping[str, Any]) -> bool:
    spec = names.get("__spec__")
    name = getattr(spec, "name", None) or names.get("__name__") or ""
    return str(name).partition(".")[0] in FROG


_import = builtins.__import__
_modules: dict[str, OnAMac] = {}


def _import_on_a_mac(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> ModuleType:
    module = _import(name, globals, locals, fromlist, level)
    if level == 0 and name in LINUX_ONLY and _is_frog(globals or {}):
        return _modules.setdefault(name, OnAMac(module))
    return module


BETWEEN = {"pathlib", "os", "io", "glob", "shutil", "tempfile", "posixpath", "genericpath", "contextlib"}
"""Modules of the standard library through which Frog opens files."""


def _called_by_frog(frame: FrameType | None) -> bool:
    """Return True if Frog called this, directly or through the standard library's functions for files."""
    while frame is not None:
        if _is_frog(frame.f_globals):
            return True
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in {*BETWEEN, "sitecustomize"}:
            return False
        frame = frame.f_back
    return False


def _is_hidden(path: object) -> bool:
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return isinstance(path, str) and path.startswith(HIDDEN)


def _refuse_hidden(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to open what a Mac does not have. Python calls this for every audited operation."""
    opens = event in ("open", "os.listdir", "os.scandir")
    if opens and _is_hidden(arguments[0]) and _called_by_frog(sys._getframe(1)):
        raise FileNotFoundError(2, "No such file or directory (on a Mac)", arguments[0])


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `os.stat`, `os.lstat` or `os.access` for a machine without the hidden files."""

    def on_a_mac(path: Any, *arguments: Any, **options: Any) -> Any:
        if _is_hidden(path) and _called_by_frog(sys._getframe(1)):
            if function.__name__ == "access":
                return False
            raise FileNotFoundError(2, "No such file or directory (on a Mac)", path)
        return function(path, *arguments, **options)

    return on_a_mac


builtins.__import__ = _import_on_a_mac  # type: ignore[assignment]
sys.addaudithook(_refuse_hidden)
for _name in ("stat", "lstat", "access"):
    setattr(os, _name, _refusing(getattr(os, _name)))
multiprocessing.set_start_method("spawn", force=True)
