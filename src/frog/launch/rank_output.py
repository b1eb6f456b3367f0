"""The output of every rank of a program: on the screen with its rank, and in a log per rank with its time.

Each rank writes stdout and stderr to one FIFO in the node's scratch folder, so their lines keep their order. The
launcher creates the FIFOs and opens them before the agent starts; a thread reads them all, and cuts them into lines,
whatever the program writes: progress bars, prompts, binary, endless lines. The agent writes a mark to a rank's FIFO
before it starts a process there (`frog.launch.torchrun.elastic`), so that each line's rank is known even if a new
attempt numbers the ranks differently.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from frog.core.runs.folder import RunFolder
from frog.core.terminal import terminal_columns, wrapped_lines
from frog.core.units import time_text

# ---- lines -----------------------------------------------------------------------------------------------------------

QUIET_S = 1.0
"""An incomplete line, such as a prompt, is shown after this time without output."""
PROGRESS_S = 10.0
"""Interval at which a line that the program overwrites, such as a progress bar, is shown."""
MOST_LINE_BYTES = 64 << 10
"""Most bytes of a line that are kept."""


class LineCutter:
    """The output of one rank, cut into lines. Times are in seconds on any clock.

    A line that the program overwrites with `\\r` counts in its last state.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._num_dropped = 0
        self._num_shown = 0
        """Bytes of the incomplete line that were returned already."""
        self._returned = False
        """True after `\\r`: further text overwrites the line."""
        self._is_progress = False
        self._fed_at = self._shown_at = 0.0

    def feed(self, data: bytes, now: float) -> list[str]:
        """Return the lines that this output completes."""
        if not self._line:
            self._shown_at = now
        self._fed_at = now
        *ended, rest = data.split(b"\n")
        lines = []
        for part in ended:
            self._add(part)
            lines += self._end()
        self._add(rest)
        return lines

    def due(self, now: float) -> list[str]:
        """Return the incomplete line if it should be shown now."""
        waited = now - self._shown_at >= PROGRESS_S if self._is_progress else now - self._fed_at >= QUIET_S
        if not waited or len(self._line) == self._num_shown:
            return []
        text = self._text()
        self._shown_at, self._num_shown = now, len(self._line)
        return [text]

    def rest(self) -> list[str]:
        """Return the incomplete line at the end of the output."""
        return self._end() if self._line else []

    def _add(self, part: bytes) -> None:
        for index, piece in enumerate(part.split(b"\r")):
            if index:
                self._returned = True
            if piece and self._returned:
                self._clear()
                self._is_progress = True
            room = MOST_LINE_BYTES - len(self._line)
            self._line += piece[:room]
            self._num_dropped += max(0, len(piece) - room)

    def _clear(self) -> None:
        self._line.clear()
        self._num_dropped = self._num_shown = 0
        self._returned = False

    def _end(self) -> list[str]:
        text, was_shown = self._text(), self._num_shown > 0
        self._clear()
        self._is_progress = False
        return [] if was_shown and not text else [text]

    def _text(self) -> str:
        """Return the part of the line that was not returned yet."""
        text = self._line[self._num_shown :].decode(errors="replace")
        return f"{text} ... ({self._num_dropped:,} more bytes)" if self._num_dropped else text


# ---- the output of all ranks -----------------------------------------------------------------------------------------

_MARK = re.compile(r"(?s)(.*)\0frog rank (\d{1,7}) (\d{1,7})")

_READ_BYTES = 1 << 16
_MOST_SHOWN = 2_000
"""Most characters of a line on the screen; the log has more."""
_MOST_KEPT = 400
"""Lines of each rank that are kept for the report of its error."""
_TOGETHER_S = 1.0
"""Indented lines within this time belong to the line above them."""
_LOOK_S = 0.1
_SETTLE_S = 5.0
_TRACEBACK = "Traceback (most recent call last):"


def mark(rank: int, attempt: int) -> bytes:
    """Return the line that says which rank the following output comes from."""
    return f"\0frog rank {rank} {attempt}\n".encode()


def pipe_path(folder: Path, local_rank: int) -> Path:
    """Return the FIFO of a local rank in its node's scratch folder."""
    return folder / f"output_{local_rank}"


Lines = deque[tuple[int, str]]
"""Lines of a rank, each with its Unix time in nanoseconds."""


@dataclass
class _Pipe:
    """One FIFO, and the process that writes to it."""

    descriptor: int
    host: str
    rank: int
    attempt: int = 0
    cutter: LineCutter = field(default_factory=LineCutter)


class RankOutput:
    """Reads the output of all ranks from their start to their end."""

    def __init__(self, folder: RunFolder | None) -> None:
        self.folder = folder
        self.kept: dict[tuple[int, int], Lines] = {}
        """Last lines by attempt and rank."""
        self._logs: dict[int, _Log] = {}
        self._new: deque[_Pipe] = deque()
        self._pipes: list[_Pipe] = []
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None
        self._closing, self._asked, self._settled = threading.Event(), threading.Event(), threading.Event()

    def open_pipes(self, folder: Path, num_ranks: int, host: str = "") -> None:
        """Create the FIFOs of a node's ranks, and read them from now on. host: shown in front of each line."""
        for local_rank in range(num_ranks):
            path = pipe_path(folder, local_rank)
            os.mkfifo(path, 0o600)
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # as a writer too, so that it never ends
            self._new.append(_Pipe(descriptor, host, local_rank))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rank output", daemon=True)
            self._thread.start()

    def settle(self) -> None:
        """Wait until all output so far has been read, including incomplete lines."""
        if self._thread is not None and self._thread.is_alive():
            self._settled.clear()
            self._asked.set()
            self._settled.wait(_SETTLE_S)

    def close(self) -> None:
        """Read the rest, and stop."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_SETTLE_S)
            if self._thread.is_alive():  # the screen blocks
                return
        for pipe in (*self._pipes, *self._new):
            os.close(pipe.descriptor)
        self._selector.close()
        for log in self._logs.values():
            log.close()

    # ---- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            hurry = self._closing.is_set() or self._asked.is_set()
            while self._new:
                pipe = self._new.popleft()
                self._pipes.append(pipe)
                self._selector.register(pipe.descriptor, selectors.EVENT_READ, pipe)
            ready = self._selector.select(0 if hurry else _LOOK_S)
            for key, _ in ready:
                self._read(key.data)
            now = time.monotonic()
            for pipe in self._pipes:
                self._take(pipe, pipe.cutter.due(now))
            if hurry and not ready:
                for pipe in self._pipes:
                    self._take(pipe, pipe.cutter.rest())
                self._asked.clear()
                self._settled.set()
                if self._closing.is_set():
                    return

    def _read(self, pipe: _Pipe) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(pipe.descriptor, _READ_BYTES)
            self._take(pipe, pipe.cutter.feed(data, time.monotonic()))

    def _take(self, pipe: _Pipe, lines: list[str]) -> None:
        """Show, keep and log lines; a mark says whose the next lines are."""
        texts: list[str] = []
        for line in lines:
            mark = _MARK.fullmatch(line)
            if mark is None:
                texts.append(line)
                continue
            self._write(pipe, [*texts, mark[1]] if mark[1] else texts)
            texts = []
            pipe.rank, pipe.attempt = int(mark[2]), int(mark[3])
        self._write(pipe, texts)

    def _write(self, pipe: _Pipe, texts: list[str]) -> None:
        if not texts:
            return
        now_ns, prefix = time.time_ns(), f"[rank{pipe.rank}]: "  # torch's, in front of each line of a traceback
        texts = [text.removeprefix(prefix) for text in texts]
        kept = self.kept.setdefault((pipe.attempt, pipe.rank), deque(maxlen=_MOST_KEPT))
        kept.extend((now_ns, text) for text in texts)
        self._show(pipe, texts)
        if self.folder is not None:
            log = self._logs.setdefault(pipe.rank, _Log(self.folder.rank_log(pipe.rank), pipe.rank))
            log.write(texts)

    def _show(self, pipe: _Pipe, texts: list[str]) -> None:
        head = f"{pipe.host} rank {pipe.rank} | ".lstrip()
        short = (text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..." for text in texts)
        with contextlib.suppress(OSError, ValueError):  # the screen is closed, as by `| head`
            columns = terminal_columns()
            shown = (wrapped_lines(f"{head}{text}".rstrip(), columns, hang=len(head)) for text in short)
            print("".join(f"{text}\n" for text in shown), end="", flush=True)


class _Log:
    """The log of one rank: a time and the rank in front of each line, except the continuation of a traceback."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
        self._file: IO[bytes] | None = None
        self._in_traceback = False
        self._wrote_at = 0.0

    def write(self, texts: list[str]) -> None:
        """Write lines. A full disk loses them, but does not end the run."""
        stamp, now = time_text(), time.monotonic()
        together = now - self._wrote_at < _TOGETHER_S
        lines = []
        for text in texts:
            head = "" if together and self._continues(text) else f"{stamp} rank {self._rank} | "
            self._in_traceback = _TRACEBACK in text or (self._in_traceback and text.startswith(" "))
            lines.append(f"{head}{text}\n")
            together = True
        self._wrote_at = now
        with contextlib.suppress(OSError):
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
            self._file.write("".join(lines).encode(errors="replace"))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _continues(self, text: str) -> bool:
        return text[:1] in (" ", "\t") or (self._in_traceback and bool(text))
