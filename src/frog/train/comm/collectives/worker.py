"""Asynchronous collectives: a thread that runs them one after another, in the order of the requests.

A caller that waits for the next collective before it has begun runs it itself: no thread has to wake up for a result
that is needed immediately.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from frog.train.comm.collectives.errors import CollectiveError
from frog.train.comm.collectives.under_way import UnderWay


class Handle(UnderWay):
    """A requested collective."""

    def __init__(self, worker: Worker, job: Callable[[], None]) -> None:
        super().__init__()
        self._worker, self.job = worker, job
        self.begun = False

    def wait(self) -> None:
        self._worker.help(self)
        super().wait()

    def finish(self, error: BaseException | None = None) -> None:
        self.job = _nothing  # this also releases the buffers
        super().finish(error)


def _nothing() -> None:
    return


class Worker:
    """Runs the collectives of one group."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[Handle] = deque()
        self._state = threading.Condition(threading.Lock())
        self._busy = self._closed = False
        self._thread: threading.Thread | None = None
        self.broken: BaseException | None = None
        """Why nothing more can run: after an error, the ranks no longer agree on their position."""

    def start(self, job: Callable[[], None], *finished: Callable[[], None]) -> Handle:
        """Request a collective. finished: called when it ends, with or without an error."""
        handle = Handle(self, job)
        for call in finished:
            handle.call_at_end(call)
        with self._state:
            self._jobs.append(handle)
            # A callback on the thread itself may wait for this collective: a new thread continues.
            if self._thread in (None, threading.current_thread()):
                self._thread = threading.Thread(target=self._run, name=f"frog {self._name}", daemon=True)
                self._thread.start()
            self._state.notify_all()
        return handle

    def run(self, job: Callable[[], None]) -> None:
        """Run a collective after all earlier requests."""
        with self._state:
            free = not self._busy and not self._jobs
            self._busy |= free
        if not free:
            self.start(job).wait()
            return
        try:
            error = self._carry_out(job)
        finally:
            self._release()
        if error is not None:
            raise error

    def help(self, handle: Handle) -> None:
        """Run, on the calling thread, all requests up to `handle` that no other thread is running."""
        while True:
            with self._state:
                self._state.wait_for(lambda: handle.begun or not self._busy)
                if handle.begun:
                    return
                first = self._begin()
            self._end(first)

    def _begin(self) -> Handle:
        first = self._jobs.popleft()
        first.begun = self._busy = True
        return first

    def _end(self, handle: Handle) -> None:
        try:
            error = self._carry_out(handle.job)
        finally:
            self._release()  # first: a callback at the end may wait for the next collective
        handle.finish(error)

    def _release(self) -> None:
        with self._state:
            self._busy = False
            self._state.notify_all()

    def _run(self) -> None:
        while self._thread is threading.current_thread():
            with self._state:
                self._state.wait_for(lambda: self._closed or (self._jobs and not self._busy))
                if self._closed:
                    return
                handle = self._begin()
            self._end(handle)
            del handle

    def _carry_out(self, job: Callable[[], None]) -> BaseException | None:
        if self.broken is not None:
            return self.broken
        try:
            with np.errstate(all="ignore"):
                job()
        except ValueError as error:  # an impossible request, rejected before any byte was sent
            return error
        except CollectiveError as error:
            self.broken = error
            return error
        except BaseException as error:
            self.broken = CollectiveError(f"interrupted by {type(error).__name__}")
            return error
        return None

    def close(self) -> None:
        with self._state:
            self._closed = True
            waiting = [self._begin() for _ in list(self._jobs)]
            self._state.notify_all()
        for handle in waiting:
            handle.finish(CollectiveError("the group was closed"))
