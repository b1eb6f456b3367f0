"""The process of a rank: signals, exit code, and error reports to torchrun, the run folder and the screen."""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from frog.core.env import WorldEnv, launcher_pid, under_mpich, world_env
from frog.core.errors import CommError, ErrorFacts, FrogError, LostError, UsageError, report_error, system_cause
from frog.core.processes import leave_with_parent
from frog.core.runs import EventWriter
from frog.core.runs.folder import RunFolder
from frog.core.runs.observer import named_observers, observing
from frog.launch.torchrun.error_file import leave_error
from frog.train.checkpoint import disk_full_hint
from frog.train.log import RankLog
from frog.train.record import write_failure
from frog.train.stop import StopRequest

_FOLLOWS_S = 2.0
"""DeepSpeed's launcher polls its ranks once per second, torchrun (which srun may kill) ten times."""

_STAGGER_S, _MOST_STAGGERED = 0.2, 10
"""MPICH's mpiexec lost 56 of 200 exit codes when two ranks ended together, 0 of 60 when they ended 0.02 s apart."""

_LOOK_S = 0.05

_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""File errors that the user caused, not the program."""


class RankProcess:
    """The process of one rank: its signals, progress and exit code. Reports errors raised inside the block.

    with RankProcess() as rank:
        env = rank.begin()
        ...
        rank.exit_code = 0
    """

    def __init__(self, *, has_steps: bool = True) -> None:
        """With has_steps=False, Ctrl-C and SIGTERM end the process at once: it has no step after which to stop."""
        self._has_steps = has_steps
        self.stop = StopRequest()
        self.exit_code = 0
        self.env: WorldEnv | None = None
        self.folder: RunFolder | None = None
        self.events: EventWriter | None = None
        self._observing = ExitStack()

    def __enter__(self) -> RankProcess:
        if self._has_steps:
            self.stop.install()
        get_error_handler().initialize()
        return self

    def begin(self) -> WorldEnv:
        """Determine the rank of this process. Under a launcher, the process ends when its parent does."""
        env = self.env = world_env()
        if env.launched or launcher_pid() is not None:  # without a launcher it may outlive the shell, as under nohup
            leave_with_parent()
        self._observing.enter_context(observing(*named_observers()))
        return env

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._observing.close()
        if isinstance(error, Exception):
            self.exit_code = self.report(error)
        elif error is not None:
            return False
        self.let_others_go_first(self.exit_code, error)
        return True

    @property
    def rank(self) -> int:
        return self.env.rank if self.env else 0

    def report(self, error: Exception) -> int:
        """Report the error everywhere that is still writable; return the exit code."""
        if isinstance(error, OSError) and system_cause(error) == "no_space":
            hint = "free disk space, then start again"
            if self.folder is not None and self.folder.checkpoint_steps():
                hint = disk_full_hint(self.folder)
            error = FrogError(f"the disk is full: {error}", hint, ErrorFacts(cause="no_space"))
        if isinstance(error, OSError) and error.errno in _NOT_OURS and error.filename:
            error = FrogError(f"{error.filename}: {error.strerror}", "`ls -ld` shows its owner and type")
        no_memory = _memory_facts(error)
        report = report_error(error, no_memory)
        leave_error(error, report)
        expected = isinstance(error, FrogError)
        text = f"error: {error}" if expected else "".join(traceback.format_exception(error)).rstrip()
        with contextlib.suppress(OSError):
            self._report_to_folder(error, text, report)
        if launcher_pid() is None:  # else `frog run` reports the first error when the world has ended
            if no_memory:
                where = "; train.log says where" if self.folder else ""
                text = f"error: out of memory: {error}\n  try: a smaller batch or model, or smaller buckets{where}"
            self._report_to_screen(error, text)
        return error.exit_code if isinstance(error, FrogError) else 1

    def let_others_go_first(self, code: int, cause: Exception | None) -> None:
        """Delay the exit of a rank whose error is a consequence: launchers other than ours report the first exit.

        The ranks that only lost a peer wait. So do those whose usage error rank 0 reports for all: otherwise srun might
        kill rank 0 before it reports. SIGTERM, which launchers send after the first failure, ends the wait.

        MPICH's mpiexec before 4.2.3 exits with 0 if several ranks fail or are interrupted at the same moment.

        Source:  https://github.com/pmodels/mpich/issues/7057
        """
        if code == 0 or self.env is None or self.env.world_size == 1 or launcher_pid() is not None:
            return
        follows = isinstance(cause, CommError) or (isinstance(cause, UsageError) and self.rank != 0)
        if under_mpich():
            time.sleep(_STAGGER_S * (min(self.rank, _MOST_STAGGERED) + (_MOST_STAGGERED if follows else 0)))
        until = time.monotonic() + (_FOLLOWS_S if follows else 0.0)
        while self.stop.signal_number != signal.SIGTERM and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))

    def _report_to_folder(self, error: Exception, text: str, report: dict[str, Any]) -> None:
        if self.folder is None:
            return
        if isinstance(error, LostError):  # another rank now has its place in the run and its files
            with RankLog(self.folder.rank_log(self.rank), self.rank, show=False) as log:
                log.note(text)
            return
        step = self.events.step if self.events else 0
        short = {"type": report["type"], "message": str(error), "rank": self.rank, "step": step}
        # A rank that only lost its peers does not replace the report of the rank that caused the failure.
        write_failure(self.folder, step, short, replace=not isinstance(error, CommError))
        if self.events is not None:
            self.events.emit("error", step=step, phase=self.events.phase, **report)
            self.events.emit("end", step=step, status="failed", weights_sha256=None)
        with RankLog(self.folder.rank_log(self.rank), self.rank, show=False) as log:
            log.note(text)

    def _report_to_screen(self, error: Exception, text: str) -> None:
        """Print the error. All ranks have the same usage error, so only rank 0 prints it."""
        if self.rank == 0 or not isinstance(error, UsageError):
            several = self.env is not None and self.env.world_size > 1
            mark = f"[rank {self.rank}] " if several else ""
            print("\n".join(mark + line for line in text.splitlines()), file=sys.stderr, flush=True)


def _memory_facts(error: Exception) -> ErrorFacts | None:
    """Return the facts of an out-of-memory error. On a GPU, torch has a class for it; on a CPU, only a message."""
    named = isinstance(error, torch.OutOfMemoryError | MemoryError)
    full = named or "DefaultCPUAllocator: can't allocate memory" in str(error)
    return ErrorFacts(cause="no_memory") if full else None
