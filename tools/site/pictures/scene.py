"""A picture with a timeline: shapes that appear, move and grow, written as an SVG with CSS animations.

Time is in steps; a step takes `step_s` seconds. The width is 440 units, so that text of 13 units can be read on a
phone. Shapes have the values of the still, the picture without animation; a keyframe rule adds the motion. Colors
follow the page's color scheme.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from frog.observe.view.palette import PHASE_COLORS, RANK_COLORS

WIDTH: Final = 440
TEXT: Final = 13
MARGIN: Final = 12
_LETTER: Final = 0.52
"""Width of an average letter, as a part of the text's size. A test in Chromium measures the real widths."""

COLORS: Final[dict[str, tuple[str, str]]] = {
    "ink": ("#1b1d21", "#e8e8e4"),
    "quiet": ("#565d64", "#a3abb3"),
    "ground": ("#f6f6f2", "#14171a"),
    "raised": ("#ffffff", "#1e2226"),
    "line": ("#b9b9b0", "#50575e"),
    "grid": ("#e4e4dd", "#2a2f34"),
    "good": ("#14704f", "#4fcf9f"),
    "bad": ("#b3261e", "#ff8a80"),
    "dark": ("#14171a", "#14171a"),
    "white": ("#ffffff", "#ffffff"),
    **PHASE_COLORS,
    **{f"r{rank}": pair for rank, pair in enumerate(RANK_COLORS)},
}
_RANKS: Final = frozenset(f"r{rank}" for rank in range(len(RANK_COLORS)))
TEXT_ON: Final = {
    **dict.fromkeys(("backward", "checkpoint"), "white"),
    **dict.fromkeys(("data", "forward", "reduce", "evaluate"), "dark"),
    **dict.fromkeys(("optimize", "zero", "bad", "good", *(f"r{rank}" for rank in range(8))), "ground"),
}
"""The text color that can be read on a color; ink on others."""

_COLUMNS: Final = 56
"""Letters in a line of a caption."""

Window = tuple[float, float]
Place = tuple[float, float, float]


@dataclass
class Scene:
    """One picture with fixed settings."""

    title: str
    height: float
    step_s: float = 1.4
    _parts: list[str] = field(default_factory=list)
    _marks: list[tuple[float, str]] = field(default_factory=list)
    _tracks: list[tuple[str, list[tuple[float, str]]]] = field(default_factory=list)
    _length: float = 0.0

    # ---- shapes, as markup ----

    def rect(self, x: float, y: float, w: float, h: float, fill: str, edge: str = "", round_: float = 3) -> str:
        stroke = f" s-{edge}" if edge else ""
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(w, 0.1))}" height="{_n(h)}"'
        return f'<rect {place} rx="{_n(round_)}" class="f-{fill}{stroke}"/>'

    def text(
        self,
        x: float,
        y: float,
        words: str,
        color: str = "ink",
        at: str = "start",
        size: int = TEXT,
        bold: bool = False,
    ) -> str:
        """Return text with its baseline at y. Raises ValueError if it may leave the picture."""
        width = len(words) * size * _LETTER
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[at]
        if left < -1 or left + width > WIDTH + 1:
            raise ValueError(f"{words!r} at {x:.0f} is {width:.0f} wide")
        anchor = "" if at == "start" else f' text-anchor="{at}"'
        sized = "" if size == TEXT else f' font-size="{size}"'
        weight = ' font-weight="650"' if bold else ""
        place = f'x="{_n(x)}" y="{_n(y)}"{anchor}{sized}{weight}'
        kind = "t" if color in PHASE_COLORS or color in _RANKS else "f"
        return f'<text {place} class="{kind}-{color}">{escape(words, quote=False)}</text>'

    def box(
        self, x: float, y: float, w: float, h: float, words: str, fill: str, edge: str = "", size: int = TEXT
    ) -> str:
        """Return a rectangle with words in its middle."""
        color = TEXT_ON.get(fill, "ink")
        return self.rect(x, y, w, h, fill, edge) + self.text(
            x + w / 2, y + h / 2 + size * 0.36, words, color, "middle", size
        )

    def line(
        self, points: Sequence[tuple[float, float]], color: str = "line", width: float = 1.5, dash: str = ""
    ) -> str:
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<polyline points="{path}" fill="none" stroke-width="{_n(width)}"{dashes} class="s-{color}"/>'

    def arrow(self, x1: float, y1: float, x2: float, y2: float, color: str = "ink", width: float = 2) -> str:
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 9 * ux, y2 - 9 * uy
        tip = f"M{_n(x2)} {_n(y2)}L{_n(bx - 5 * uy)} {_n(by + 5 * ux)}L{_n(bx + 5 * uy)} {_n(by - 5 * ux)}z"
        return self.line([(x1, y1), (bx, by)], color, width) + f'<path d="{tip}" class="f-{color}"/>'

    def cross(self, x: float, y: float, half: float = 9, color: str = "bad") -> str:
        return "".join(
            self.line([(x - half, y - sign * half), (x + half, y + sign * half)], color, 3.5) for sign in (1, -1)
        )

    # ---- time ----

    def add(
        self,
        markup: str,
        show: Window | list[Window] | None = None,
        move: Sequence[Place] = (),
        grow: Sequence[tuple[float, float]] = (),
        origin: tuple[float, float] = (0, 0),
    ) -> None:
        """Add shapes.

        show:  when they are visible: from a time until before another; always, without it.
        move:  (time, dx, dy): where they are, on a straight line between two times.
        grow:  (time, factor): their width, scaled from `origin`.
        """
        tracks = []
        if show is not None:
            tracks.append(("opacity", _seen(show if isinstance(show, list) else [show])))
        if grow:
            tracks.append(("transform", [(t, f"scale({_n(factor, 4)},1)") for t, factor in grow]))
        if move:
            tracks.append(("transform", [(t, f"translate({_n(x)}px,{_n(y)}px)") for t, x, y in move]))
        for name, points in tracks:
            key = self._key(name, points)
            is_scaled = points[0][1].startswith("scale")
            place = f' style="transform-origin:{_n(origin[0])}px {_n(origin[1])}px"' if is_scaled else ""
            markup = f'<g class="{key}"{place}>{markup}</g>'
        self._parts.append(markup)

    def mark(self, time: float, caption: str) -> None:
        """Begin a step of the player's: `caption` is shown from then until the next mark."""
        self._marks.append((time, caption))

    def end(self, time: float) -> None:
        """Set the length of the timeline: the last step stays visible until then."""
        self._length = time

    def _key(self, name: str, points: list[tuple[float, str]]) -> str:
        for number, known in enumerate(self._tracks):
            if known == (name, points):
                return f"a{number}"
        self._tracks.append((name, points))
        return f"a{len(self._tracks) - 1}"

    # ---- the file ----

    def svg(self, still_at: float | None = None) -> str:
        """Return the picture. The still is that of a time; by default the end of the timeline."""
        marks, total = sorted(self._marks), self._length
        top, rows = self.height, 2
        for number, (time, caption) in enumerate(marks):
            until = marks[number + 1][0] if number + 1 < len(marks) else total + 1
            lines = wrapped(caption, _COLUMNS)
            rows = max(rows, len(lines))
            words = "".join(self.text(MARGIN, top + 18 + 18 * row, line) for row, line in enumerate(lines))
            self.add(words, show=(time, until))
        height = top + 10 + 18 * rows
        at = total if still_at is None else still_at
        rules, moves = [], []
        for number, (name, points) in enumerate(self._tracks):
            played = f"animation:k{number} {_n(total * self.step_s)}s linear infinite"
            rules.append(f".a{number}{{{name}:{_value_at(points, at)};{played}}}")
            moves.append(f"@keyframes k{number}{{{_keyframes(name, points, total)}}}")
        body = "\n".join(self._parts)
        style = (
            ":root{color-scheme:light dark}text{font:13px Inter,system-ui,sans-serif;font-variant-numeric:tabular-nums}"
        )
        for name, (light, dark) in COLORS.items():
            for kind, property_ in (("f", "fill"), ("s", "stroke")):
                if f"{kind}-{name}" in body:
                    style += f".{kind}-{name}{{{property_}:light-dark({light},{dark})}}"
            if f"t-{name}" in body:
                style += f".t-{name}{{fill:light-dark({','.join(text_colors(name))})}}"
        style += ".f-none{fill:none}.f-ground{fill:light-dark(#f6f6f2,#14171a)}"
        style += "".join(rules + moves)
        style += "@media(prefers-reduced-motion:reduce){svg:not(.played) *{animation:none!important}}"
        style += "@media print{svg *{animation:none!important}}"
        steps = json.dumps([[round(1000 * self.step_s * time), caption] for time, caption in marks])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_n(height)}" width="640" '
            f'height="{round(640 * height / WIDTH)}" role="img" data-steps="{escape(steps)}" '
            f'data-length="{round(1000 * self.step_s * total)}" data-still="{round(1000 * self.step_s * at)}">'
            f"<title>{escape(self.title, quote=False)}</title><style>{style}</style>\n"
            f'<rect width="{WIDTH}" height="{_n(height)}" rx="8" class="f-ground"/>\n{body}\n</svg>\n'
        )


def text_colors(name: str) -> list[str]:
    """Return the colors of text in a color of phases or ranks, light and dark: mixed with ink to be readable."""
    return [
        "#" + "".join(f"{round(0.6 * int(a[at : at + 2], 16) + 0.4 * int(b[at : at + 2], 16)):02x}" for at in (1, 3, 5))
        for a, b in zip(COLORS[name], COLORS["ink"], strict=True)
    ]


def wrapped(words: str, columns: int) -> list[str]:
    """Break a sentence into lines."""
    lines = [""]
    for word in words.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > columns:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _n(value: float, digits: int = 1) -> str:
    """Write a number as short as its digits allow."""
    words = f"{value:.{digits}f}"
    words = words.rstrip("0").rstrip(".") if "." in words else words
    return "0" if words == "-0" else words


def _seen(windows: Sequence[Window]) -> list[tuple[float, str]]:
    """Return the opacity's jumps: 0 outside of the windows, 1 inside."""
    points = [(-1.0, "0")]
    for start, end in windows:
        points += [(start, "1"), (end, "0")]
    return points


def _value_at(points: list[tuple[float, str]], at: float) -> str:
    """Return the value of the last point at or before a time."""
    return ([value for time, value in points if time <= at + 1e-9] or [points[0][1]])[-1]


def _keyframes(name: str, points: list[tuple[float, str]], total: float) -> str:
    """Return the frames of a rule: opacity jumps, transformations pass evenly."""
    frames: list[tuple[float, str]] = []
    for time, value in points:
        share = min(100.0, max(0.0, 100 * time / total))
        if time > total:
            break
        if name == "opacity" and frames and share > 0:
            frames.append((max(share - 0.01, 0.0), frames[-1][1]))
        if frames and frames[-1][0] >= share:
            frames[-1] = (share, value)
        else:
            frames.append((share, value))
    if frames[0][0] > 0:
        frames.insert(0, (0.0, frames[0][1]))
    if frames[-1][0] < 100:
        frames.append((100.0, frames[-1][1]))
    found: list[tuple[list[str], str]] = []
    for share, value in frames:
        if found and found[-1][1] == value and name == "opacity" and len(found[-1][0]) == 1:
            found[-1][0].append(_n(share, 2))
        else:
            found.append(([_n(share, 2)], value))
    return "".join(f"{','.join(share + '%' for share in shares)}{{{name}:{value}}}" for shares, value in found)
