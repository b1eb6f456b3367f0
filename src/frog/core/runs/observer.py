"""Observers of a rank receive its phases, events, collectives and messages as they happen.

A process is one rank and has one list of observers. If the list is empty, reporting costs one check. `frog profile`
adds its own observer; for fault injection, the rank's process adds the observer that its environment names:

    FROG_OBSERVER=frog.measure.chaos.chaos_rank:/tmp/faults.toml      calls `observe("/tmp/faults.toml")` of that module
"""

from __future__ import annotations

import functools
import importlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from frog.core.env import observer_name
from frog.core.errors import UsageError
from frog.core.runs.vocabulary import Phase

P = ParamSpec("P")
T = TypeVar("T")


class Observer:
    """Base class of observers; a subclass overrides the methods that it needs.

    Frog calls each method in the acting thread, by default just before the action. A method may wait, raise, or end
    the process.
    """

    def run_built(self, run: Any, strategy: Any) -> None:
        """This rank is about to run steps (frog.train.setup.Run): at the start, and after each membership change."""

    def phase_begins(self, step: int, phase: Phase, micro: int) -> None:
        """A phase of the training loop begins; its time is running."""

    def phase_ends(self, step: int, phase: Phase, micro: int) -> None:
        """The phase ends; its time is still running. Not called for a phase that raised an error."""

    def event_written(self, event: str, fields: Mapping[str, Any]) -> None:
        """An event other than a span or a collective was written, for example `step` or `checkpoint`."""

    def collective_begins(self, op: str, num_ranks: int, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """A collective, a send, a receive or a shift begins, with `args` of `frog.train.comm.axis.Axis.start_<op>`.

        Return the arguments to start it with, or None to skip it.
        """
        return args

    # Inside Frog's collectives (frog.train.comm.collectives), called by any strategy or library.

    def operation_begins(self, name: str) -> None:
        """A collective begins, or an `agreement` on the members of a new world, or this rank's `entry` to a world."""

    def operation_ends(self, name: str) -> None:
        """The operation has ended or failed."""

    def message_leaves(self, sock: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
        """The rest of a message, `parts`, goes to the operating system."""

    def message_arrives(self) -> None:
        """This rank reads the received bytes of a message."""

    def counter_rises(self, counter: int, value: int) -> None:
        """This rank sets its counter in shared memory (`shared_memory.COUNTERS`) to a new value."""


OBSERVERS: list[Observer] = []
"""Observers of this process."""


@contextmanager
def observing(*observers: Observer) -> Iterator[None]:
    """Report to these observers inside the block."""
    OBSERVERS.extend(observers)
    try:
        yield
    finally:
        for observer in observers:
            OBSERVERS.remove(observer)


class operation:
    """Reports an operation of Frog's collectives; a decorator or a context manager."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def reported(*args: P.args, **kwargs: P.kwargs) -> T:
            if not OBSERVERS:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return reported

    def __enter__(self) -> None:
        for observer in OBSERVERS:
            observer.operation_begins(self._name)

    def __exit__(self, *error: object) -> None:
        for observer in OBSERVERS:
            observer.operation_ends(self._name)


def named_observers() -> list[Observer]:
    """Load the observer that the environment names, if any. Raises UsageError if it cannot be loaded."""
    name = observer_name()
    if name is None:
        return []
    module, _, argument = name.partition(":")
    try:
        observe = importlib.import_module(module).observe
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"environment variable FROG_OBSERVER={name!r} does not name an observer: {error}",
            "unset FROG_OBSERVER, or set it to MODULE:ARGUMENT, where MODULE has a function `observe`",
        ) from None
    return [observe(argument)]
