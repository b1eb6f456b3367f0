"""The page of a search: its front of step time and memory, drawn and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from frog.plan.plan_text import layout_words
from frog.plan.search.best import Candidate, SearchResult

_GIB = 2**30
_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 64, 28, 52
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b8559a")
"""For the largest number of GPUs, a half, a quarter and an eighth of it; on light and dark pages."""


@dataclass(frozen=True)
class _Axes:
    """Places of step times, on a logarithmic scale, and of memory."""

    least_s: float
    most_s: float
    most_gib: float

    def x(self, seconds: float) -> float:
        part = math.log(seconds / self.least_s) / math.log(self.most_s / self.least_s)
        return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, gib: float) -> float:
        return round(_HEIGHT - _BOTTOM - gib / self.most_gib * (_HEIGHT - _TOP - _BOTTOM), 1)


def front_page(result: SearchResult, cluster_name: str) -> str:
    """Return a page, without scripts, with the layouts that no other beats in step time, memory and GPU-hours."""
    env = jinja2.Environment(loader=jinja2.PackageLoader("frog.plan.search", "."), autoescape=True)
    drawing = _drawing(result.front) if result.front else None
    rows = [
        {
            "gpus": candidate.run.layout.num_gpus,
            "layout": layout_words(candidate.run),
            "step_s": f"{candidate.step_s:#.4g}",
            "gib": f"{candidate.memory / _GIB:.1f}",
            "mfu": f"{100 * candidate.mfu:.1f}",
            "gpu_hours": f"{candidate.gpu_s / 3600:.3g}",
        }
        for candidate in result.front
    ]
    page = env.get_template("front.html.jinja")
    return page.render(result=result, cluster=cluster_name, drawing=drawing, rows=rows) + "\n"


def _drawing(front: Sequence[Candidate]) -> dict[str, Any]:
    """Return the places of everything in the drawing, in pixels."""
    limit = front[0].run.cluster.gpu.memory / _GIB
    times = [candidate.step_s for candidate in front]
    axes = _Axes(min(times) / 1.15, max(times) * 1.15, 1.08 * limit)
    numbers = sorted({candidate.run.layout.num_gpus for candidate in front}, reverse=True)
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "top": _TOP,
        "bottom": _HEIGHT - _BOTTOM,
        "limit": {"y": axes.y(limit), "text": f"{limit:.0f} GiB: memory of a GPU"},
        "times": [{"x": axes.x(s), "text": f"{s:g}"} for s in _steps_of(axes.least_s, axes.most_s)],
        "memory": [{"y": axes.y(gib), "text": f"{gib:g}"} for gib in range(0, int(axes.most_gib) + 1, _nice(limit))],
        "lines": [_line(number, front, axes, _COLORS[place % 4]) for place, number in enumerate(numbers)],
    }


def _line(num_gpus: int, front: Sequence[Candidate], axes: _Axes, color: str) -> dict[str, Any]:
    points = [
        {
            "x": axes.x(candidate.step_s),
            "y": axes.y(candidate.memory / _GIB),
            "text": f"{layout_words(candidate.run)}: {candidate.step_s:.4g} s, {candidate.memory / _GIB:.1f} GiB",
        }
        for candidate in sorted(
            (each for each in front if each.run.layout.num_gpus == num_gpus),
            key=lambda each: each.step_s,
        )
    ]
    return {"num_gpus": num_gpus, "color": color, "points": points}


def _steps_of(least: float, most: float) -> Iterator[float]:
    """Yield 1, 2 and 5 times the powers of ten between two numbers."""
    for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1):
        yield from (number for digit in (1, 2, 5) if least <= (number := digit * 10.0**power) <= most)


def _nice(most: float) -> int:
    """Return a distance for about five marks: 1, 2 or 5 times a power of ten, at least 1."""
    least = max(1.0, most / 6)
    return int(next(number for number in _steps_of(least / 2, least * 10) if number >= least))
