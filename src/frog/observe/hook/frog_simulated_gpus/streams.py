"""Streams and events. All work is synchronous on a CPU, so a stream is never behind and an event has a real time."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import torch

from .devices import Gpus, index_of
from .replace import replace


class Stream:
    """A queue that is always empty: each call has finished when it returns."""

    _last_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device_index = index_of(device)
        self.device = torch.device("cuda", self.device_index)
        self.priority = priority
        Stream._last_id += 1
        self.stream_id = self.cuda_stream = Stream._last_id
        self._outer: list[Stream] = []

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the range that CUDA has on most GPUs."""
        return 0, -5

    def query(self) -> bool:
        """Return True: no work is left."""
        return True

    def is_capturing(self) -> bool:
        """Return True inside `torch.cuda.graph`."""
        return torch.cuda.is_current_stream_capturing()

    def synchronize(self) -> None:
        """Return at once: no work is left."""

    def wait_event(self, event: Event) -> None:
        """Return at once: what the event follows has finished."""

    def wait_stream(self, stream: Stream) -> None:
        """Return at once: the other stream has no work left."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event now."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._outer.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *error: object) -> None:
        set_stream(self._outer.pop())

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:{self.device_index} (simulated)>"


class Event:
    """A point in time, read from the clock of the process when it is recorded."""

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, **kwargs: Any
    ) -> None:
        self.device = torch.device("cuda", index_of(None if isinstance(device, bool) else device))
        self.enable_timing = enable_timing or device is True  # the first argument of torch.cuda.Event
        self._recorded_s: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Take the time."""
        self._recorded_s = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Return at once: what was recorded has finished."""

    def query(self) -> bool:
        """Return True: what was recorded has finished."""
        return True

    def synchronize(self) -> None:
        """Return at once: what was recorded has finished."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to another. Raises RuntimeError as CUDA does."""
        if not self.enable_timing or not end_event.enable_timing:
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_s is None or end_event._recorded_s is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded_s - self._recorded_s) * 1e3


class _Streams:
    default: ClassVar[dict[int, Stream]] = {}
    current: Stream | None = None


def default_stream(device: Any = None) -> Stream:
    """Return the default stream of a GPU."""
    index = index_of(device)
    return _Streams.default.setdefault(index, Stream(index))


def current_stream(device: Any = None) -> Stream:
    """Return the current stream of a GPU."""
    index = index_of(device)
    if _Streams.current is not None and _Streams.current.device_index == index:
        return _Streams.current
    return default_stream(index)


def set_stream(stream: Stream | None) -> None:
    """Make a stream the current one."""
    if stream is not None:
        _Streams.current = stream
        Gpus.current = stream.device_index


class StreamContext:
    """Makes a stream the current one inside a block; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self._before, self._device = _Streams.current, Gpus.current
        set_stream(self.stream)

    def __exit__(self, *error: object) -> None:
        _Streams.current, Gpus.current = self._before, self._device


def patch_streams() -> None:
    """Replace streams and events of torch.cuda, torch.accelerator and torch."""
    for owner in (torch.cuda, torch.cuda.streams, torch):
        replace(owner, "Stream", Stream)
        replace(owner, "Event", Event)
    for owner in (torch.cuda, torch.cuda.streams):
        replace(owner, "ExternalStream", Stream)
    for name, new in (
        ("current_stream", current_stream),
        ("default_stream", default_stream),
        ("set_stream", set_stream),
        ("stream", StreamContext),
        ("StreamContext", StreamContext),
        ("get_stream_from_external", lambda data_ptr, device=None: Stream(device)),
    ):
        replace(torch.cuda, name, new)
    replace(torch.accelerator, "current_stream", current_stream)
    replace(torch.accelerator, "set_stream", set_stream)
