"""Inject faults into a rank of any program, as `frog chaos` asks: standard library only, like the observer.

FROG_FAULTS names a JSON file with a list of faults. A thread in the rank waits for each fault's moment, a collective
or a time, and then does to its own process what a failing machine would. A fault happens once per launch, even if the
world restarts: a file next to the list, NUMBER.done, records when.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .place import find_place
from .recorder import num_enqueued

_POLL_S = 0.001
_SLICE_S = 0.02
"""Length of a stop of a slow rank."""

_SLOW = """
import os, signal, sys, time
pid, stop_s, run_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
try:
    while os.getppid() == pid:
        for number, seconds in ((signal.SIGSTOP, stop_s), (signal.SIGCONT, run_s)):
            os.kill(pid, number)
            time.sleep(seconds)
except ProcessLookupError:
    pass
"""
"""A child process that stops its parent again and again: a stopped process cannot continue by itself."""


class InjectedError(RuntimeError):
    """The error that the fault `raise` raises in the main thread."""

    def __init__(self) -> None:
        super().__init__("this error was injected")


def install() -> None:
    """Start a thread for this rank's faults, if it has any."""
    path = os.environ.get("FROG_FAULTS")
    place = find_place(os.environ, os.getpid())
    if path is None or place is None:
        return
    with open(path, encoding="utf-8") as file:
        faults = json.load(file)
    for number, fault in enumerate(faults):
        if fault["rank"] == place.rank:
            run = _Injection(path, number, {**fault, "node": place.node_rank}).run
            threading.Thread(target=run, name="frog fault", daemon=True).start()


class _Injection:
    """One fault of this rank, from the program's start to its moment."""

    def __init__(self, path: str, number: int, fault: dict[str, Any]) -> None:
        self._mark = os.path.join(os.path.dirname(path), f"{number}.done")
        self._fault = fault
        self._began_s = time.monotonic()

    def run(self) -> None:
        """Wait for the moment, and inject the fault unless it has happened before a restart."""
        if os.path.exists(self._mark):
            return
        while not self._is_time():
            time.sleep(_POLL_S)
        if self._take():
            _ACTS[self._fault["kind"]](self._fault)

    def _is_time(self) -> bool:
        if self._fault["collective"] is None:
            return time.monotonic() - self._began_s >= float(self._fault["after_s"])
        return _num_enqueued() >= int(self._fault["collective"])

    def _take(self) -> bool:
        """Record that the fault happens now; False if another process has done so."""
        try:
            descriptor = os.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        os.write(descriptor, f"{time.time_ns()} {_num_enqueued()}".encode())
        os.close(descriptor)
        return True


def _num_enqueued() -> int:
    try:
        return num_enqueued()
    except (ValueError, KeyError, RuntimeError):  # torch is being imported
        return 0


def _kill(fault: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(fault: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit(fault: dict[str, Any]) -> None:
    os._exit(int(fault["code"]))


def _raise(fault: dict[str, Any]) -> None:
    """Raise an error in the main thread, when it next runs Python code."""
    main = threading.main_thread().ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main or 0), ctypes.py_object(InjectedError))


def _become_slow(fault: dict[str, Any]) -> None:
    """Let the process run for only a part of the time from now on."""
    run_s = _SLICE_S / (float(fault["factor"]) - 1)
    words = [sys.executable, "-I", "-S", "-c", _SLOW, str(os.getpid()), str(_SLICE_S), str(run_s)]
    subprocess.Popen(words, stdin=subprocess.DEVNULL, env={})


def _use_up_memory(fault: dict[str, Any]) -> None:
    """Let every further allocation of memory fail, as on a machine whose memory is used up."""
    import resource

    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the process kept would still be usable
    with open("/proc/self/statm", "rb") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _fill_disk(fault: dict[str, Any]) -> None:
    """Let every further write to a file fail. The error is EFBIG, since ENOSPC needs a file system of its own."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _request(act: str) -> Callable[[dict[str, Any]], None]:
    """Return an act of the launcher on this rank's node (frog.core.runs.launch_request)."""

    def ask(fault: dict[str, Any]) -> None:
        folder = os.path.join(os.environ["FROG_LAUNCH_DIR"], "requests")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{act}_{os.getpid()}")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump({"act": act, "node": fault["node"]}, file)
        os.rename(f"{path}.new", f"{path}.json")

    return ask


_ACTS = {
    "kill": _kill,
    "stop": _stop,
    "exit": _exit,
    "raise": _raise,
    "slow": _become_slow,
    "memory": _use_up_memory,
    "disk": _fill_disk,
    "node": _request("kill_node"),
    "cut": _request("cut"),
}
