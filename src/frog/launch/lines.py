"""Cuts the output of a rank into lines, whatever the program writes: progress bars, prompts, binary, endless lines."""

from __future__ import annotations

QUIET_S = 1.0
"""An incomplete line, such as a prompt, is shown after this time without output."""
PROGRESS_S = 10.0
"""Interval at which a line that the program overwrites, such as a progress bar, is shown."""
MOST_BYTES = 64 << 10
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
            room = MOST_BYTES - len(self._line)
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
