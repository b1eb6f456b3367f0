"""A program that a learner wrote in another language than Python's, run under the same limits."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from frog.comm.forkserver import ForkServer
from frog.core.env import child_env
from frog.core.processes import descendants
from frog.grader.guard import hide
from frog.grader.limits import (
    LOOK_S,
    MOST_BYTES,
    MOST_FILE_BYTES,
    MOST_OUTPUT_BYTES,
    MOST_SCRATCH_BYTES,
    end_descendants,
    folder_bytes,
)
from frog.grader.outcome import Failure

_MOST_PROCESSES = 100
"""A cluster of pretended nodes has some dozens."""


@dataclass(frozen=True)
class Ended:
    """A program that has ended, or was ended."""

    code: int
    """Negative: the signal that ended it."""
    out: str
    err: str
    folder: Path
    """The scratch folder, until the check ends."""
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
) -> Ended:
    """Run it to its end, or to a limit: seconds of computing of all its processes, and of the wall.

    It does not see the course's folders, where the system allows that.
    """
    keep = [server.pid] if server is not None else []
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                list(words),
                cwd=scratch,
                env={**child_env(**env), "TMPDIR": str(scratch)},
                stdin=given,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=functools.partial(_limit, labs),  # the judge has one thread
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


def _limit(labs: Path) -> None:
    hide(labs)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))


def _watch(
    process: subprocess.Popen[bytes],
    scratch: Path,
    seconds: float,
    wall_s: float,
    outputs: Sequence[int],
    keep: Sequence[int],
) -> Failure | None:
    """Wait for its end, or for the first limit that it meets."""
    start, used = time.monotonic(), 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            return _too_much(scratch, outputs)  # a full disk's worth may be written between two looks
        family = _family(keep)
        used = max(used, sum(seconds_of for seconds_of, _ in family))
        if used > seconds:
            return Failure("never-ends", f"It had computed for {seconds:g} s and had not come to an end.", 0)
        if time.monotonic() - start > wall_s:
            return Failure("never-ends", f"After {wall_s:g} s it had not come to an end.", 0)
        if sum(memory for _, memory in family) > MOST_BYTES:
            return Failure("too-much-memory", f"It took more than {MOST_BYTES >> 30} GiB of memory.", 0)
        if len(family) > _MOST_PROCESSES:
            return Failure("too-many-processes", f"It had {len(family)} processes.", 0)
        if (failure := _too_much(scratch, outputs)) is not None:
            return failure


def _too_much(scratch: Path, outputs: Sequence[int]) -> Failure | None:
    """Whether it has printed or written more than it may."""
    if sum(os.fstat(output).st_size for output in outputs) > MOST_OUTPUT_BYTES:
        return Failure("too-much-output", f"It printed more than {MOST_OUTPUT_BYTES >> 20} MiB.", 0)
    if folder_bytes(scratch) > MOST_SCRATCH_BYTES:
        return Failure("too-many-files", f"It wrote more than {MOST_SCRATCH_BYTES >> 20} MiB of files.", 0)
    return None


def _family(keep: Sequence[int]) -> list[tuple[float, int]]:
    """Of all that this process has started, orphans too: seconds of computing, bytes of memory."""
    found = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            member = psutil.Process(pid)
            times = member.cpu_times()
            waited_for = times.children_user + times.children_system
            if member.pid not in keep:
                found.append((times.user + times.system + waited_for, member.memory_info().rss))
    return found
