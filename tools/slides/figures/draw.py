"""Draw an SVG of 1160 x 520 units, the space below a slide's headline, in the report's colours, light and dark.

No text is under 24 units.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from frog.observe.view.palette import PHASE_COLORS, RANK_COLORS

WIDTH: Final = 1160
HEIGHT: Final = 520
SMALLEST: Final = 24
DATA = Path(__file__).parents[1] / "data"

COLORS: Final[dict[str, tuple[str, str]]] = {
    "ink": ("#1b1d1f", "#e7e7e3"),
    "quiet": ("#5d646b", "#9ba3ab"),
    "page": ("#fbfbf8", "#131517"),
    "raised": ("#ffffff", "#1a1d20"),
    "line": ("#c9c9c0", "#454b51"),
    "grid": ("#ecece6", "#25292d"),
    "good": ("#14704f", "#4fcf9f"),
    "bad": ("#b3261e", "#ff8a80"),
    "heldout": ("#c2185b", "#ff7aa8"),
    "dark": ("#14171a", "#14171a"),
    "white": ("#ffffff", "#ffffff"),
    **PHASE_COLORS,
    **{f"r{rank}": pair for rank, pair in enumerate(RANK_COLORS)},
}
TEXT_ON: Final = {  # the text that can be read on a colour
    **dict.fromkeys(("backward", "checkpoint"), "white"),
    **dict.fromkeys(("data", "forward", "reduce", "evaluate"), "dark"),
    **dict.fromkeys(("optimize", "zero", "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "bad", "good"), "page"),
}


def _style() -> str:
    """Style shared by all figures; an HTML page with several figures needs it only once."""
    colors = "".join(
        f".f-{name}{{fill:light-dark({light},{dark})}}.s-{name}{{stroke:light-dark({light},{dark})}}"
        for name, (light, dark) in COLORS.items()
    )
    return (
        ":root{color-scheme:light dark}"
        "text{font-family:Inter,system-ui,sans-serif}text.digits{font-variant-numeric:tabular-nums}"
        'text.mono{font-family:"JetBrains Mono",ui-monospace,monospace;'
        "font-variant-ligatures:none}text.bold{font-weight:700}"
        f"{colors}"
    )


def load(name: str) -> dict[str, Any]:
    """Read the recorded results of a measurement by `measure.py`."""
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return {key: value for key, value in found.items() if key not in ("machine", "commands")}


class Figure:
    """Shapes on a page; x to the right, y down. Colours are names of this file."""

    def __init__(self, height: int = HEIGHT) -> None:
        self.height = height
        self._parts: list[str] = []

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str = "raised", edge: str = "", round_: float = 5
    ) -> None:
        stroke = f' class="f-{fill} s-{edge}" stroke-width="2"' if edge else f' class="f-{fill}"'
        self._parts.append(
            f'<rect x="{x:.5g}" y="{y:.5g}" width="{max(w, 0.5):.5g}" height="{h:.5g}" rx="{round_}"{stroke}/>'
        )

    def text(
        self, x: float, y: float, words: str, color: str = "ink", at: str = "start", size: int = 26, style: str = ""
    ) -> None:
        """Draw text with its baseline at y; `at` is start, middle or end; `style` bold or mono."""
        assert size >= SMALLEST, words
        if not any(letter.isalpha() for letter in words):
            style = f"{style} digits".strip()
        self._parts.append(
            f'<text x="{x:.5g}" y="{y:.5g}" font-size="{size}" text-anchor="{at}" class="f-{color} {style}">'
            f"{_raised(escape(words))}</text>"
        )

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        words: str = "",
        fill: str = "raised",
        edge: str = "",
        size: int = 26,
    ) -> None:
        """Draw a rectangle with centred text, one line each."""
        self.rect(x, y, w, h, fill, edge)
        lines = words.split("\n") if words else []
        top = y + h / 2 - (len(lines) - 1) * size * 0.62 + size * 0.36
        for i, line in enumerate(lines):
            self.text(x + w / 2, top + i * size * 1.24, line, TEXT_ON.get(fill, "ink"), "middle", size)

    def line(
        self, points: Sequence[tuple[float, float]], color: str = "ink", width: float = 2.5, dash: str = ""
    ) -> None:
        path = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" class="s-{color}" stroke-width="{width}" '
            f'stroke-linejoin="round"{dashes}/>'
        )

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, color: str = "ink", width: float = 3, dash: str = ""
    ) -> None:
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        bx, by, side = x2 - 15 * ux, y2 - 15 * uy, 8
        self.line([(x1, y1), (bx, by)], color, width, dash)
        tip = f"{x2:.5g},{y2:.5g} {bx - side * uy:.5g},{by + side * ux:.5g} {bx + side * uy:.5g},{by - side * ux:.5g}"
        self._parts.append(f'<polygon points="{tip}" class="f-{color}"/>')

    def dot(self, x: float, y: float, r: float = 7, color: str = "ink") -> None:
        self._parts.append(f'<circle cx="{x:.5g}" cy="{y:.5g}" r="{r}" class="f-{color}"/>')

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str]], size: int = 28) -> None:
        """Draw coloured squares with labels in a row; y is the baseline."""
        for color, words in entries:
            self.rect(x, y - 0.85 * size, size, size, color)
            self.text(x + 1.4 * size, y, words, size=size)
            x += 1.4 * size + 0.56 * size * len(words) + 1.4 * size

    def svg(self, title: str) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" role="img"><title>{escape(title)}</title><style>{_style()}</style>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


def _share(value: float, ends: tuple[float, float], logarithmic: bool) -> float:
    """Return the position of a value between two ends, from 0 to 1."""
    low, high = ends
    if logarithmic:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


class Plot:
    """A plane inside a figure: from data to places, with axes; either axis may be logarithmic."""

    def __init__(
        self,
        figure: Figure,
        left: float,
        top: float,
        width: float,
        height: float,
        xs: tuple[float, float],
        ys: tuple[float, float],
        log: str = "",
    ) -> None:
        self.figure, self.left, self.top, self.width, self.height = figure, left, top, width, height
        self.xs, self.ys, self.log = xs, ys, log

    def x(self, value: float) -> float:
        return self.left + self.width * _share(value, self.xs, "x" in self.log)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - _share(value, self.ys, "y" in self.log))

    def axes(
        self, xticks: Sequence[tuple[float, str]], yticks: Sequence[tuple[float, str]], xname: str, yname: str
    ) -> None:
        for value, words in yticks:
            self.figure.line([(self.left, self.y(value)), (self.left + self.width, self.y(value))], "grid", 2)
            self.figure.text(self.left - 14, self.y(value) + 9, words, "quiet", "end", 26)
        bottom = self.top + self.height
        for value, words in xticks:
            self.figure.text(self.x(value), bottom + 36, words, "quiet", "middle", 26)
        self.figure.line([(self.left, bottom), (self.left + self.width, bottom)], "line", 2)
        self.figure.text(self.left + self.width, bottom + 72, xname, "quiet", "end", 26)
        self.figure.text(self.left, self.top - 18, yname, "quiet", "start", 26)

    def curve(self, points: Sequence[tuple[float, float]], color: str, width: float = 4, dash: str = "") -> None:
        self.figure.line([(self.x(a), self.y(b)) for a, b in points], color, width, dash)

    def dot(self, x: float, y: float, color: str, r: float = 8) -> None:
        self.figure.dot(self.x(x), self.y(y), r, color)


def _raised(words: str) -> str:
    """Return text in which the exponent of a power, as in 2^-25, stands above the line."""
    return re.sub(r"\^(-?\d+)(.?)", lambda power: _above(power[1].replace("-", "−"), power[2]), words)


def _above(exponent: str, following: str) -> str:
    lowered = f'<tspan dy=".4em">{following}</tspan>' if following else ""
    return f'<tspan dy="-.4em" font-size="{SMALLEST}">{exponent}</tspan>{lowered}'
