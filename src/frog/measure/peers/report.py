"""The page with a measurement of collectives: bandwidth over size by library, and the machine's limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.files import write_atomic
from frog.core.runs.folder import check_output
from frog.core.units import format_bytes, time_text
from frog.measure.peers.measurement import CONTENDERS, LIMITS, Result, Row

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 300, 52, 12, 12, 34

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis, which maps values to positions."""

    low: float
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        if self.high == self.low:
            return (self.begin + self.end) / 2
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.begin + part * (self.end - self.begin), 1)


def write_report(result: Result, path: Path) -> Path:
    """Write the page: one self-contained file."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("frog.measure.peers", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template("bench.html.jinja").render(
        result=result,
        now=time_text()[:16],
        contenders={name: CONTENDERS[name] for name in result.contenders},
        limits={name: LIMITS[name] for name in _limits(result)},
        operations=[(name, _charts(result, name), _rows(result, name)) for name in result.operations],
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        bottom=HEIGHT - BOTTOM,
    )
    check_output(path)
    write_atomic(path, html + "\n")
    return path


def _charts(result: Result, operation: str) -> list[dict[str, Any]]:
    """Plot algorithm bandwidth, and bus bandwidth together with the machine's limits."""
    limits = {
        name: sorted((limit.num_bytes, limit.bytes_per_s) for limit in result.limits if limit.name == name)
        for name in _limits(result)
    }
    return [
        _chart("algbw", _lines(result, operation, lambda row: row.algorithm_bytes_per_s), {}),
        _chart("busbw", _lines(result, operation, lambda row: row.bus_bytes_per_s(result.num_ranks)), limits),
    ]


def _limits(result: Result) -> list[str]:
    """Return the limits of the measured contenders."""
    return sorted({result.limit_name(contender) for contender in result.contenders})


def _lines(result: Result, operation: str, value: Callable[[Row], float]) -> dict[str, Points]:
    rows = sorted((row for row in result.rows if row.operation == operation), key=lambda row: row.num_bytes)
    return {name: [(row.num_bytes, value(row)) for row in rows if row.contender == name] for name in result.contenders}


def _chart(name: str, lines: Mapping[str, Points], limits: Mapping[str, Points]) -> dict[str, Any]:
    """Compute lines and a grid, in drawing units. The vertical axis covers whole powers of ten, in bytes per second."""
    points = [point for line in (*lines.values(), *limits.values()) for point in line]
    sizes, rates = sorted({size for size, _ in points}), [rate for _, rate in points]
    lowest, highest = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    x = Scale(sizes[0], sizes[-1], LEFT + 20, WIDTH - RIGHT - 20)
    y = Scale(10.0**lowest, 10.0**highest, HEIGHT - BOTTOM, TOP)

    def drawn(all_lines: Mapping[str, Points]) -> dict[str, list[tuple[float, float]]]:
        return {label: [(x.place(size), y.place(rate)) for size, rate in line] for label, line in all_lines.items()}

    return {
        "name": name,
        "lines": drawn(lines),
        "limits": drawn(limits),
        "sizes": [(x.place(size), format_bytes(int(size))) for size in sizes],
        "grid": [(y.place(10.0**power), f"{10.0 ** (power - 9):g}") for power in range(lowest, highest + 1)],
    }


def _rows(result: Result, operation: str) -> list[dict[str, Any]]:
    return [
        {
            "size": format_bytes(row.num_bytes),
            "by": row.contender,
            "time": f"{row.time_s * 1e6:,.1f}",
            "algbw": f"{row.algorithm_bytes_per_s / 1e9:.3f}",
            "busbw": f"{row.bus_bytes_per_s(result.num_ranks) / 1e9:.3f}",
            "share": f"{result.share_of_limit(row):.1%}",
            "times": _times_text(result.times_gloo(row)),
        }
        for row in result.rows
        if row.operation == operation
    ]


def _times_text(times: float | None) -> str:
    return "" if times is None else f"{times:.2f}"
