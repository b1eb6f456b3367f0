"""Something that was begun and is not over: it can be waited for, and calls back when it is."""

from __future__ import annotations

import threading
from collections.abc import Callable


class UnderWay:
    """Begun, and over once `finish` was called."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._guard = threading.Lock()
        self._calls: list[Callable[[], None]] | None = []
        self._done = threading.Lock()
        self._done.acquire()

    def is_completed(self) -> bool:
        return not self._done.locked()

    def wait(self) -> None:
        """Return when it is over. Raises what went wrong."""
        self._done.acquire()
        self._done.release()
        if self.error is not None:
            raise self.error

    def call_at_end(self, call: Callable[[], None]) -> bool:
        """Have `call` called when it is over. Returns False if it is."""
        with self._guard:
            if self._calls is not None:
                self._calls.append(call)
            return self._calls is not None

    def finish(self, error: BaseException | None = None) -> None:
        """It is over. Calling it again does nothing."""
        with self._guard:
            calls, self._calls = self._calls, None
        if calls is None:
            return
        self.error = error
        self._done.release()
        for call in calls:
            call()
