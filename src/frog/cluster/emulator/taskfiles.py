"""Input and output of a step's tasks: through srun, or through files named by --output and similar options."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frog.cluster.emulator import command_options as opt
from frog.cluster.emulator.notation import fill_pattern, pattern_values
from frog.cluster.emulator.refusal import SlurmRefusal, unknown

_BLOCK_BYTES = 1 << 16


class TaskFiles:
    """Opens each file of a step once, even if several tasks share it."""

    def __init__(self, answer: Mapping[str, Any], options: Mapping[str, str | None], folder: Path) -> None:
        self._answer = answer
        self._options = options
        self._folder = folder
        self._append = opt.appends(options)
        self._open: dict[Path, int] = {}

    def output(self, task: Mapping[str, Any]) -> int | None:
        return self._writable("output", task)

    def error(self, task: Mapping[str, Any]) -> int | None:
        """Return the value of --error, or otherwise of --output."""
        return self._writable("error" if "error" in self._options else "output", task)

    def input(self, task: Mapping[str, Any]) -> int | None:
        path = self._path("input", task)
        return None if path is None else self._descriptor(path, os.O_RDONLY, "stdin")

    def _writable(self, name: str, task: Mapping[str, Any]) -> int | None:
        """Return a file, or None if srun itself must forward the output."""
        path = self._path(name, task)
        if path is None:
            return None
        empty = 0 if self._append else os.O_TRUNC
        return self._descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | empty, f"std{name[:3]}")

    def _path(self, name: str, task: Mapping[str, Any]) -> Path | None:
        text = self._options.get(name)
        if text is None or text.lower().startswith("all") or text.startswith("-"):
            return None  # Slurm treats all.txt as "all"
        if text.lower() == "none":
            return Path(os.devnull)
        if text.isdigit():
            raise unknown(f"--{name}={text} of srun: one task's number")
        answer = self._answer
        values = pattern_values(
            answer["job"], answer["name"], answer["user"], task["node"], answer["array_job"], answer["array_task"]
        )
        step = str(answer["step"])
        values |= {"s": step, "J": f"{values['j']}.{step}", "t": str(task["rank"]), "n": str(task["node_rank"])}
        return self._folder / fill_pattern(text, values)

    def _descriptor(self, path: Path, flags: int, what: str) -> int:
        if path not in self._open:
            try:
                self._open[path] = os.open(path, flags, 0o666)
            except OSError as error:
                raise SlurmRefusal(f"Could not open {what} file {path}: {error.strerror}") from None
        return self._open[path]

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


_output_lock = threading.Lock()


def pump(source: int, target: int, label: str) -> threading.Thread:
    """Forward a task's output until every writer has closed the pipe, with `label`, if any, before each line.

    Then closes both ends.
    """
    thread = threading.Thread(target=_pump, args=(source, target, label.encode()), daemon=True)
    thread.start()
    return thread


def _pump(source: int, target: int, label: bytes) -> None:
    rest = b""
    while block := _read(source):
        if not label:
            _write(target, block)
            continue
        *lines, rest = (rest + block).split(b"\n")
        _write(target, b"".join(label + line + b"\n" for line in lines))
    if rest:
        _write(target, label + rest + b"\n")
    os.close(source)
    os.close(target)


def _read(source: int) -> bytes:
    try:
        return os.read(source, _BLOCK_BYTES)
    except OSError:
        return b""


def _write(target: int, data: bytes) -> None:
    with _output_lock, contextlib.suppress(OSError):
        while data:
            data = data[os.write(target, data) :]


def broadcast(source: int, targets: Sequence[int]) -> None:
    """Copy the input from `source` to every task. Each task has a queue, so a slow task does not delay the others."""
    queues: list[queue.SimpleQueue[bytes]] = [queue.SimpleQueue() for _ in targets]
    for own, target in zip(queues, targets, strict=True):
        threading.Thread(target=_feed, args=(own, target), daemon=True).start()

    def read() -> None:
        while True:
            block = _read(source)
            for own in queues:
                own.put(block)
            if not block:
                return

    threading.Thread(target=read, daemon=True).start()


def _feed(own: queue.SimpleQueue[bytes], target: int) -> None:
    with contextlib.suppress(OSError):
        while block := own.get():
            while block:
                block = block[os.write(target, block) :]
    os.close(target)
