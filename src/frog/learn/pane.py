"""A scrollable list of lines."""

from __future__ import annotations


class Pane:
    """Keeps a scroll position, limited by the lines shown last."""

    def __init__(self) -> None:
        self.first = 0
        self._num_rows, self._num_lines = 1, 0

    def show(self, lines: list[str], num_rows: int) -> list[str]:
        """Return the visible lines, exactly `num_rows` of them."""
        self._num_rows, self._num_lines = num_rows, len(lines)
        self.first = min(self.first, self._last)
        shown = lines[self.first : self.first + num_rows]
        return shown + [""] * (num_rows - len(shown))

    def move(self, num_lines: int) -> None:
        self.first = max(0, min(self.first + num_lines, self._last))

    def page(self) -> None:
        """Show the next page; after the last page, the first."""
        self.first = 0 if self.first == self._last else min(self.first + self._num_rows, self._last)

    def reveal(self, line: int, num_rows: int) -> None:
        """Scroll as little as possible to make a line visible."""
        self.first = max(line - num_rows + 1, min(self.first, line))

    @property
    def place(self) -> str:
        """The visible range, such as `lines 5 to 16 of 40`; empty if all lines are visible."""
        if not self._last:
            return ""
        return f"lines {self.first + 1} to {self.first + self._num_rows} of {self._num_lines}"

    @property
    def _last(self) -> int:
        """Index of the last page's first line."""
        return max(0, self._num_lines - self._num_rows)
