"""torch.cuda as a program sees it while it is planned: the answers of the planned GPU, its streams and its events.

Streams and events write rows, so that work on a stream of its own overlaps as far as the program lets it, and
`elapsed_time` is the planned time between two events:

    ["stream", stream]              the operations below run on this stream; 0 is the default one
    ["join", stream, other]         a stream waits for all work of another
    ["record", event, stream]       an event is complete when the stream's work is
    ["wait_event", stream, event]
    ["sync_event", event]           Python waits
"""

from __future__ import annotations

import itertools
import types
from typing import Any

import torch

from frog.plan.program.recording_rank import Recorder, user_line
from frog.plan.program.virtual_clock import VirtualClock


class GpuFacts:
    """The answers to a program's questions about its GPU."""

    name = "GPU"
    memory = 80 * 2**30
    num_sms = 132
    count = 8
    index = 0
    """The GPU that the program sets; the first one unless it does."""


def _set_device(device: Any) -> None:
    index = device if isinstance(device, int) else torch.device(device).index
    GpuFacts.index = index or 0


class Stream:
    """A stream; the default one has the number 0."""

    recorder: Recorder
    current: Stream
    _numbers = itertools.count(1)

    def __init__(self, *args: Any, number: int | None = None, **kwargs: Any) -> None:
        self.stream_id = next(self._numbers) if number is None else number
        self.device, self.cuda_stream, self.priority = torch.device("cuda:0"), self.stream_id, 0
        self._before: list[Stream] = []

    def __enter__(self) -> Stream:
        self._before.append(Stream.current)
        Stream.use(self)
        return self

    def __exit__(self, *_: object) -> None:
        Stream.use(self._before.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return self.stream_id

    @classmethod
    def use(cls, stream: Stream | None) -> None:
        """Let the operations that follow run on a stream; None changes nothing."""
        if stream is not None and stream != cls.current:
            cls.current = stream
            cls.recorder.stream = stream.stream_id
            cls.recorder.rows.append(["stream", stream.stream_id])

    def wait_stream(self, other: Stream) -> None:
        """Wait for all work of another stream."""
        if other != self:
            self.recorder.rows.append(["join", self.stream_id, other.stream_id])

    def wait_event(self, event: Event) -> None:
        """Wait for an event."""
        self.recorder.rows.append(["wait_event", self.stream_id, event.number])

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that is complete when the work of this stream is."""
        return (event or Event()).record(self)

    def query(self) -> bool:
        """Return True: a program that asks until all is complete would ask forever."""
        return True

    def is_capturing(self) -> bool:
        """Return False: no graph is captured."""
        return False

    def synchronize(self) -> None:
        """Let Python wait for all work of this stream."""
        self.record_event().synchronize()


class Event:
    """An event whose time is planned."""

    clock: VirtualClock
    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.number = next(self._numbers)

    def record(self, stream: Stream | None = None) -> Event:
        """Take the time at which a stream's work so far is complete, of the current stream by default; return self."""
        Stream.recorder.rows.append(["record", self.number, (stream or Stream.current).stream_id])
        return self

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for this event, the current one by default."""
        (stream or Stream.current).wait_event(self)

    def query(self) -> bool:
        """Return True: a program that asks until all is complete would ask forever."""
        return True

    def elapsed_time(self, other: Event) -> float:
        """Return the planned milliseconds from this event to another."""
        return self.clock.between(self.number, other.number)

    def synchronize(self) -> None:
        """Let Python wait for this event."""
        Stream.recorder.rows.append(["sync_event", self.number])


class _Using:
    """`with torch.cuda.stream(stream):`"""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


class _Device:
    """`with torch.cuda.device(index):`, which changes nothing: this rank has one GPU."""

    def __init__(self, device: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def stand_in_for_cuda(recorder: Recorder, clock: VirtualClock) -> None:
    """Replace the functions of torch.cuda that programs call."""
    facts = GpuFacts
    default = Stream(number=0)
    torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore[assignment, method-assign]
    Stream.recorder, Stream.current, Event.clock = recorder, default, clock

    def allocated(device: Any = None) -> int:
        return recorder.allocated

    def peak(device: Any = None) -> int:
        return recorder.peak

    def reset_peak(device: Any = None) -> None:
        recorder.peak = recorder.allocated

    properties = types.SimpleNamespace(
        name=facts.name,
        total_memory=facts.memory,
        major=9,
        minor=0,
        multi_processor_count=facts.num_sms,
        warp_size=32,
        max_threads_per_multi_processor=2048,
    )
    generator = torch.Generator()
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: facts.count,
        "current_device": lambda: facts.index,
        "set_device": _set_device,
        "get_device_name": lambda device=None: facts.name,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: True,
        "synchronize": lambda device=None: recorder.rows.append(["sync", recorder.index_of(user_line())]),
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (facts.memory - allocated(), facts.memory),
        "memory_summary": lambda *args, **kwargs: "planned: no GPU",
        "memory_stats": lambda device=None: {
            **{f"{kind}_bytes.all.current": allocated() for kind in ("allocated", "reserved", "active")},
            **{f"{kind}_bytes.all.peak": peak() for kind in ("allocated", "reserved", "active")},
            "num_alloc_retries": 0,
            "num_ooms": 0,
        },
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "seed": lambda: None,
        "get_rng_state": lambda device=None: generator.get_state(),
        "set_rng_state": lambda state, device=None: None,
        "get_rng_state_all": list,
        "set_rng_state_all": lambda states: None,
        "current_stream": lambda device=None: Stream.current,
        "default_stream": lambda device=None: default,
        "stream": _Using,
        "set_stream": Stream.use,
        "Stream": Stream,
        "Event": Event,
        "device": _Device,
        "nccl": types.SimpleNamespace(version=lambda: (2, 27, 5)),
        "memory_allocated": allocated,
        "memory_reserved": allocated,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "ipc_collect": lambda: None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    _answer_for_accelerator(answers)
    for name in ("mark", "range_push", "range_pop", "range_start", "range_end"):  # marks for a profiler
        setattr(torch.cuda.nvtx, name, lambda *args: 0)


def _answer_for_accelerator(answers: dict[str, Any]) -> None:
    """Let torch.accelerator, by which programs avoid the name of a vendor, answer as torch.cuda does."""
    same = ("is_available", "device_count", "current_stream", "set_stream", "synchronize", "empty_cache")
    own = {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": answers["current_device"],
        "current_device_idx": answers["current_device"],
        "set_device_index": _set_device,
        "set_device_idx": _set_device,
        "device_index": _Device,
        "get_memory_info": answers["mem_get_info"],
    }
    of_memory = {name: answer for name, answer in answers.items() if "memory" in name}
    for name, answer in {**of_memory, **{name: answers[name] for name in same}, **own}.items():
        if hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, answer)
    vars(torch).update(Stream=Stream, Event=Event)
