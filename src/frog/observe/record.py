"""Records a program's own numbers in its run folder, for the report's curves, `frog diagnose` and `frog compare`.

    import frog
    for step, batch in enumerate(loader, start=1):
        ...
        frog.record(step, loss=loss, grad_norm=norm, samples=batch["id"])

Each rank writes the events of Frog's own ranks (core/runs/event_schema.py): `start`, a `step` per call, then `end`.
"""

from __future__ import annotations

import atexit
import math
import operator
import os
import resource
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from frog.core.env import WorldEnv, host_name, run_dir, world_env
from frog.core.errors import FrogError
from frog.core.runs.folder import RunFolder
from frog.core.runs.write import EventWriter

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of `ru_maxrss`."""


def record(
    step: int,
    *,
    loss: Any = None,
    grad_norm: Any = None,
    learning_rate: Any = None,
    tokens: int | None = None,
    samples: Iterable[Any] | None = None,
) -> None:
    """Record one optimizer step of this rank. Call it on every rank, after the step.

    step: increases by one with each call; a program that resumes continues with its own numbers.
    loss, grad_norm, learning_rate: numbers, or tensors with one element. A tensor on a GPU is read at the next call or
        at the end, so that recording does not wait for the GPU.
    tokens: number of tokens of this rank in the step, for the throughput.
    samples: the ids of this rank's samples in the step, as integers.

    Outside a run folder (FROG_RUN_DIR is not set) the call has no effect. A disk that is full ends the recording, not
    the program.

    Raises:  ValueError if a number or an id is something else.
    """
    RECORDER.add(
        operator.index(step),
        {"loss": loss, "grad_norm": grad_norm, "learning_rate": learning_rate},
        tokens,
        None if samples is None else [_id(sample) for sample in samples],
    )


class Recorder:
    """The events of this process, if it is a rank in a run folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writer: EventWriter | None = None
        self._world: WorldEnv | None = None
        self._pid: int | None = None
        self._is_off = False
        self._waiting: tuple[dict[str, Any], dict[str, Any]] | None = None
        """Fields of the last step, and its numbers that are still on a GPU."""
        self._end_ns = 0
        """Time of the last step; 0 before the first."""

    def add(self, step: int, numbers: dict[str, Any], tokens: int | None, samples: list[int] | None) -> None:
        """Write a step, or keep it until its numbers can be read."""
        with self._lock:
            if not self._is_open(step):
                return
            now_ns = time.monotonic_ns()
            rate = self._rate(tokens, now_ns)
            self._end_ns = now_ns
            fields = _fields(step, tokens or 0, rate, samples or [], now_ns)
            try:
                self._flush()
                self._waiting = (fields, numbers)
                if not any(map(_is_on_gpu, numbers.values())):
                    self._flush()
            except OSError as error:
                self._stop(error)

    def close(self) -> None:
        """Write the last step and how the program ended."""
        with self._lock:
            if self._writer is None or self._pid != os.getpid():
                return
            failed = getattr(sys, "last_value", None) is not None
            try:
                self._flush()
                status = "failed" if failed else "completed"
                self._writer.emit("end", step=self._writer.step, status=status, weights_sha256=None)
            except OSError as error:
                self._stop(error)
            self._writer.close()
            self._writer = None

    def _is_open(self, step: int) -> bool:
        """Open the events at the first call; False in a process that records nothing, such as a loader's worker."""
        if self._pid is None:
            self._pid = os.getpid()
            self._open(step)
        return not self._is_off and self._pid == os.getpid() and self._writer is not None

    def _open(self, step: int) -> None:
        folder = run_dir()
        if folder is None:
            return
        try:
            self._world = world_env()
            self._writer = EventWriter(RunFolder(folder).rank_events(self._world.rank))
            self._writer.emit("start", step=max(0, step - 1), **_start(self._world))
        except (OSError, FrogError) as error:
            self._stop(error)
            return
        atexit.register(self.close)

    def _stop(self, error: Exception) -> None:
        self._is_off = True
        print(f"frog.record stopped; the program continues: {error}", file=sys.stderr)

    def _rate(self, tokens: int | None, now_ns: int) -> float | None:
        """Return the tokens per second of all ranks since the last step, if each has as many tokens as this one."""
        if not tokens or self._world is None or self._end_ns == 0:
            return None
        return tokens * self._world.world_size / ((now_ns - self._end_ns) / 1e9)

    def _flush(self) -> None:
        """Write the step that was kept."""
        if self._waiting is None or self._writer is None:
            return
        (fields, numbers), self._waiting = self._waiting, None
        self._writer.step = fields["step"]
        self._writer.emit("step", **fields, **{name: _number(name, value) for name, value in numbers.items()})


RECORDER = Recorder()
"""The recorder of this process."""


def _start(world: WorldEnv) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    gpu = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "rank": world.rank,
        "world_size": world.world_size,
        "local_rank": world.local_rank,
        "node_rank": world.node_rank,
        "host": host_name(),
        "pid": os.getpid(),
        "device": "cuda" if gpu else "cpu",
        "threads": torch.get_num_threads() if torch is not None else 1,
        "unix_ns": time.time_ns(),
        "mono_ns": time.monotonic_ns(),
        "mesh": {"dp": world.world_size},
        "place": {"dp": world.rank},
        "passed_over": [],
    }


def _fields(step: int, tokens: int, rate: float | None, samples: list[int], now_ns: int) -> dict[str, Any]:
    """Return the fields of a `step` event, without the numbers that the program gave."""
    return {
        "step": step,
        "loss_mean": None,
        "grad_norm_local": None,
        "tokens": tokens,
        "tokens_per_s": rate,
        "mfu": None,
        "memory_bytes": _peak_bytes(),
        "loss_scale": None,
        "skipped": False,
        "sample_ids": samples,
        "end_ns": now_ns,
    }


def _peak_bytes() -> int:
    """Return the peak of the GPU's memory that torch allocated, or of the process's memory without a GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def _is_on_gpu(value: Any) -> bool:
    return bool(getattr(getattr(value, "device", None), "type", "cpu") != "cpu")


def _number(name: str, value: Any) -> float | None:
    """Return a number as JSON has it: None if it is not finite."""
    if value is None:
        return None
    try:
        number = float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"frog.record: {name} must be a number or a tensor with one element: {error}") from None
    return number if math.isfinite(number) else None


def _id(sample: Any) -> int:
    try:
        return int(sample)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"frog.record: samples must be integers, not {type(sample).__name__}") from None
