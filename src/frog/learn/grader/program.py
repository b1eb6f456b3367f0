"""Run a learner's program in a language other than Python, under the same limits."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from frog.core.env import child_env
from frog.core.processes import descendants
from frog.launch.resource_limits import (
    CHECK_INTERVAL_S,
    MOST_BYTES,
    MOST_OUTPUT_BYTES,
    MOST_SCRATCH_BYTES,
    end_descendants,
    folder_bytes,
)
from frog.launch.torchrun.forkserver import ForkedRank, ForkServer
from frog.learn.grader.forked import confine, fork_program
from frog.learn.grader.outcome import Failure

_MOST_PROCESSES = 100
"""Process limit; a cluster of simulated nodes has a few dozen processes."""


@dataclass(frozen=True)
class Ended:
    """A program that has ended or was killed."""

    code: int
    """The exit code; negative if a signal ended the program."""
    out: str
    err: str
    folder: Path
    """The scratch folder, which exists until the check ends."""
    failure: Failure | None = None


def run_program(
    words: Sequence[str],
    scratch: Path,
    env: Mapping[str, str],
    stdin: str,
    seconds: float,
    wall_s: float,
    server: ForkServer | None,
    labs: Path,
    fork: bool = False,
    writes: Sequence[Path] = (),
) -> Ended:
    """Run a program until it ends or exceeds a limit: CPU seconds of all its processes, or wall-clock time.

    The course's folders are hidden from the program, and it writes nowhere else, if the system allows it.

    fork: fork a Python program from the server, which has torch loaded, if there is one. It writes to `scratch` alone.
    writes: places outside `scratch` that a new program may change.
    """
    keep = [server.pid] if server is not None else []
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        streams = [file.fileno() for file in (given, out, err)]
        full_env = {**child_env(**env), "TMPDIR": str(scratch)}
        forked = fork_program(server, words, scratch, full_env, streams, labs) if server and fork else None
        try:
            process = forked or subprocess.Popen(
                list(words),
                cwd=scratch,
                env=full_env,
                stdin=given,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=functools.partial(confine, labs, [scratch, *writes]),  # the judge has one thread
            )
        except OSError as problem:
            observed = f"{words[0]} cannot be started: {problem.strerror}."
            return Ended(127, "", "", scratch, Failure("not-started", observed, 0))
        failure = _watch(process, scratch, seconds, wall_s, (out.fileno(), err.fileno()), keep)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        end_descendants(keep)
        said, wrong = (os.pread(file.fileno(), MOST_OUTPUT_BYTES, 0).decode(errors="replace") for file in (out, err))
    return Ended(code, said, wrong, scratch, failure)


def _watch(
    process: subprocess.Popen[bytes] | ForkedRank,
    scratch: Path,
    seconds: float,
    wall_s: float,
    outputs: Sequence[int],
    keep: Sequence[int],
) -> Failure | None:
    """Wait until the program ends or exceeds a limit."""
    start, used = time.monotonic(), 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CHECK_INTERVAL_S)
            return _too_much(scratch, outputs)  # it may write enough to fill a disk between two looks
        family = _family(keep)
        used = max(used, sum(_seconds_of(member) for member in family))
        if used > seconds:
            return Failure("never-ends", f"It had computed for {seconds:g} s and had not finished.", 0)
        if time.monotonic() - start > wall_s:
            return Failure("never-ends", f"After {wall_s:g} s it had not finished.", 0)
        if takes_more(family, MOST_BYTES):
            return Failure("too-much-memory", f"It used more than {MOST_BYTES >> 30} GiB of memory.", 0)
        if len(family) > _MOST_PROCESSES:
            return Failure("too-many-processes", f"It had {len(family)} processes.", 0)
        if (failure := _too_much(scratch, outputs)) is not None:
            return failure


def _too_much(scratch: Path, outputs: Sequence[int]) -> Failure | None:
    """Return a failure if the program has printed or written too much."""
    if sum(os.fstat(output).st_size for output in outputs) > MOST_OUTPUT_BYTES:
        return Failure("too-much-output", f"It printed more than {MOST_OUTPUT_BYTES >> 20} MiB.", 0)
    if folder_bytes(scratch) > MOST_SCRATCH_BYTES:
        return Failure("too-many-files", f"It wrote more than {MOST_SCRATCH_BYTES >> 20} MiB of files.", 0)
    return None


def _family(keep: Sequence[int]) -> list[psutil.Process]:
    """Return all processes that this one has started, including orphans."""
    processes = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if pid not in keep:
                processes.append(psutil.Process(pid))
    return processes


def _seconds_of(process: psutil.Process) -> float:
    """Return CPU seconds, including those of children that have ended."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return float(sum(process.cpu_times()[:4]))
    return 0.0


def takes_more(family: Sequence[psutil.Process], most_bytes: int) -> bool:
    """Return True if the processes use more memory than this. A page that forked processes share counts once."""
    return sum(map(_resident, family)) > most_bytes and sum(map(_proportional, family)) > most_bytes


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return int(process.memory_info().rss)
    return 0


def _proportional(process: psutil.Process) -> int:
    """Return bytes of memory with this process's share of shared pages, or all of them if the share is unknown."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        full = process.memory_full_info()
        return int(full.pss) if hasattr(full, "pss") else int(full.rss)
    return _resident(process)
