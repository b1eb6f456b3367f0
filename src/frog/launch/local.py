"""A world on this machine: torchrun on the loopback interface, and nothing left of it afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from frog.core import errors
from frog.core.env import child_env
from frog.core.errors import CommError, FrogError, LaunchError, UsageError

_GRACE_S = 45.0
"""From asking a world to stop to killing it: time for a step and a checkpoint. torchrun itself waits 30 s."""

_TOGETHER_S = 10
"""Failures this close belong together. torchrun kills ranks that hang 30 s after the failure that they caused."""


_PROGRAMS = {
    "train": "frog.train",
    "finetune": "frog.train.finetune_main",
    "prove": "frog.train.prove",
    "profile": "frog.train.profile",
}
"""Frog's own programs that run on every rank."""


def run_world(num_ranks: int, program: Sequence[str], threads_per_rank: int | None = None) -> int:
    """Run `program` as `num_ranks` local processes under torchrun; return the exit code of the world.

    `program` is a frog command that trains (`train RUN.toml ...`) or a Python script with its arguments. The ranks meet
    at a port that the system gives out, so two worlds never meet by accident.

    Raises:  UsageError if there is nothing to run; LaunchError, with the first failing rank's own words, if it fails.
    """
    if num_ranks < 1:
        raise UsageError(f"--nproc {num_ranks}: a world has at least one rank")
    target = _target(program)
    threads = threads_per_rank or max(1, (os.cpu_count() or 1) // num_ranks)
    with tempfile.TemporaryDirectory(prefix="frog-world-") as scratch:
        outcome_path = Path(scratch) / "outcome.json"
        command = [
            *(sys.executable, "-m", "frog.comm.torchrun", str(outcome_path)),
            *("--nnodes", "1", "--nproc-per-node", str(num_ranks), "--local-addr", "127.0.0.1"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", Path(scratch).name),
            *("--log-dir", scratch, *target),
        ]
        env = child_env(OMP_NUM_THREADS=str(threads), FROG_LAUNCHER_PID=str(os.getpid()))
        agent = subprocess.Popen(command, env=env, start_new_session=True)
        with _pass_signals_on(agent) as received:
            code = _wait(agent, received)
        _end_group(agent)
        outcome = json.loads(outcome_path.read_text()) if outcome_path.exists() else {"failures": []}
    if received:
        return 128 + received[0]
    if outcome["failures"]:
        raise _failure(outcome["failures"])
    if code != 0:
        raise LaunchError(f"the agent of the world ended with exit code {code}", "its own message is above")
    return 0


def _target(program: Sequence[str]) -> list[str]:
    if not program:
        raise UsageError("nothing to run", "frog run --nproc 4 -- train config/demo.toml")
    name, *rest = program
    if name in _PROGRAMS:
        return ["-m", _PROGRAMS[name], *rest]
    if not Path(name).is_file():
        raise UsageError(
            f"{name}: neither a frog command that runs on every rank ({', '.join(_PROGRAMS)}) nor a script",
            "frog run --nproc 4 -- train RUN.toml",
        )
    return [name, *rest]


@contextmanager
def _pass_signals_on(agent: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """While inside, SIGINT and SIGTERM go on to the agent, which has a process group of its own; yields those seen."""
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if agent.poll() is None:
            agent.send_signal(signal.SIGTERM if len(received) == 1 else signal.SIGKILL)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(agent: subprocess.Popen[bytes], received: list[int]) -> int:
    """Wait for the agent; once a stop was asked for, only so long."""
    deadline = None
    while True:
        try:
            return agent.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if received and deadline is None:
                deadline = time.monotonic() + _GRACE_S
            if deadline is not None and time.monotonic() > deadline:
                agent.kill()


def _end_group(agent: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of the agent's process group. Ranks watch their agent and end when it is gone."""
    try:
        os.killpg(agent.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _failure(failures: Sequence[dict[str, Any]]) -> LaunchError:
    """The error of the rank that failed first; of those that failed together, one that did not just lose its peers."""
    start_s = min(failure["time_s"] for failure in failures)
    together = [failure for failure in failures if failure["time_s"] - start_s <= _TOGETHER_S]
    first = min(together, key=lambda failure: (_is_victim(failure), failure["time_s"], failure["rank"]))
    code, (kind, message) = first["exit_code"], _split(first["error"])
    if code == UsageError.exit_code and kind is not None:
        error = LaunchError(message)
    else:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        others = len(failures) - 1
        also = f" ({others} other rank{'s' if others > 1 else ''} ended with it)" if others else ""
        told = message if kind is not None else (first["traceback"] or message).rstrip()
        text = f"rank {first['rank']} (pid {first['pid']}) {how}{also}\n{told}".rstrip()
        error = LaunchError(text, f"its log is logs/rank_{first['rank']}/train.log" if first["error"] else None)
    error.exit_code = code if code > 0 else 128 - code
    return error


def _split(message: str | None) -> tuple[str | None, str]:
    """torchrun's "KindOfError: words" as the name of a Frog error (None for any other) and the words."""
    kind, colon, words = (message or "").partition(": ")
    found = getattr(errors, kind, None) if colon else None
    return (kind, words) if isinstance(found, type) and issubclass(found, FrogError) else (None, message or "")


def _is_victim(failure: dict[str, Any]) -> bool:
    """Whether this rank failed because another had left: its error is a CommError, or torchrun ended it."""
    return failure["exit_code"] == -signal.SIGTERM or _split(failure["error"])[0] == CommError.__name__
