"""An operation that has begun and not finished: callers can wait for it, or register a callback."""

from __future__ import annotations

import threading
from collections.abc import Callable


class UnderWay:
    """An operation that has begun; `finish` ends it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._guard = threading.Lock()
        self._calls: list[Callable[[], None]] | None = []
        self._done = threading.Lock()
        self._done.acquire()

    def is_completed(self) -> bool:
        return not self._done.locked()

    def wait(self) -> None:
        """Wait until the operation has finished. Raises its error."""
        self._done.acquire()
        self._done.release()
        if self.error is not None:
            raise self.error

    def call_at_end(self, call: Callable[[], None]) -> bool:
        """Register a callback for the end. Return False if the operation has already finished."""
        with self._guard:
            if self._calls is not None:
                self._calls.append(call)
            return self._calls is not None

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the operation as finished. A second call does nothing."""
        with self._guard:
            calls, self._calls = self._calls, None
        if calls is None:
            return
        self.error = error
        self._done.release()
        for call in calls:
            call()
