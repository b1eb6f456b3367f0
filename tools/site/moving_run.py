"""Draw a run that lost a rank and resumed, as a moving SVG: what each rank did, from its events.

    frog chaos --fault "kill rank=1 step=4" --nproc 4 --restarts 1 -- train config/demo.toml \\
        --set train.steps=8 --set checkpoint.every=2 --set eval.every=100 --set name=moving
    python -m tools.site.moving_run runs/moving > docs/pictures/moving-run.svg

A line moves over the picture and uncovers it; every width is a measured time. The pause between the two worlds is
drawn shorter than it was, and says how long it was. Without animation the whole picture shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from frog.core.runs.attempts import Attempt
from frog.core.runs.event_schema import SpanEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.run import read_run
from frog.observe.view.palette import PHASE_COLORS

WIDTH, LANE, TOP, LEFT = 840, 34, 64, 66
PAUSE = 160
"""Width of the pause between two worlds."""
SECONDS, PLAYED = 14, 0.85
"""Length of the animation, and the part of it in which the line moves; then the picture stays."""
LEGEND = ("data", "forward", "backward", "reduce", "optimize", "checkpoint")
STEPS_BEFORE, STEPS_AFTER = 2, 3
"""Steps drawn before the failure, in which the last one ends, and after it."""


@dataclass(frozen=True)
class Box:
    """A phase of a rank, in seconds since 1970."""

    rank: int
    phase: str
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class World:
    """All phases of one attempt's steps, the step from which it began, and when its processes ended."""

    boxes: list[Box]
    began_at: int
    ends_s: dict[int, float]
    killed: int | None
    """The rank that a signal killed, or None."""


def worlds_of(attempts: Iterable[Attempt]) -> list[World]:
    """Return the worlds whose ranks began to train, in order."""
    return [
        World(
            [box for rank in attempt.workers for box in _boxes(attempt, rank)],
            min(worker.start.step for worker in attempt.workers.values() if worker.start),
            {event.rank: event.unix_ns / 1e9 for event in attempt.exits},
            next((event.rank for event in attempt.exits if (event.code or 0) < 0), None),
        )
        for attempt in attempts
        if any(worker.start for worker in attempt.workers.values())
    ]


def _boxes(attempt: Attempt, rank: int) -> Iterator[Box]:
    for event in attempt.workers[rank].of(SpanEvent):
        if event.phase != "evaluate":
            times = (attempt.unix_ns(rank, time_ns) or 0 for time_ns in (event.start_ns, event.end_ns))
            start_s, end_s = (time_ns / 1e9 for time_ns in times)
            yield Box(rank, event.phase, event.step, start_s, end_s)


def draw(worlds: Sequence[World]) -> str:
    """Return the SVG of the last steps before a failure and the first ones after it. Raises ValueError without one."""
    failed = next((pair for pair in pairwise(worlds) if pair[0].killed is not None), None)
    if failed is None:
        raise ValueError("no rank of this run was killed and started again")
    before, after = failed
    last = max(box.step for box in before.boxes)
    kept = [
        [box for box in before.boxes if box.step > last - STEPS_BEFORE],
        [box for box in after.boxes if box.step <= after.began_at + STEPS_AFTER],
    ]
    died_s = before.ends_s[before.killed or 0]
    bounds = [(min(box.start_s for box in boxes), max(box.end_s for box in boxes)) for boxes in kept]
    bounds[0] = (bounds[0][0], died_s)
    scale = (WIDTH - LEFT - PAUSE - 16) / sum(end_s - start_s for start_s, end_s in bounds)
    edge = LEFT + (bounds[0][1] - bounds[0][0]) * scale
    origins = (LEFT - bounds[0][0] * scale, edge + PAUSE - bounds[1][0] * scale)
    ranks = sorted({box.rank for box in before.boxes})
    bars = [
        _rect(box, origin + box.start_s * scale, (min(box.end_s, end_s) - box.start_s) * scale)
        for boxes, origin, (_, end_s) in zip(kept, origins, bounds, strict=True)
        for box in boxes
        if box.start_s < end_s
    ]
    height = TOP + LANE * len(ranks) + 46
    labels = [f'<text x="14" y="{_y(rank) + 19}">rank {rank}</text>' for rank in ranks]
    dead_y = _y(before.killed or 0)
    where = f"from the checkpoint of step {after.began_at}" if after.began_at else "from the beginning"
    marks = [
        f'<path class="dead" d="M{edge:.1f} {dead_y + 4}l18 18m0-18l-18 18"/>',
        _words(edge + 26, dead_y + 19, f"rank {before.killed} is killed", "dead"),
        _words(edge + 26, height - 18, f"{bounds[1][0] - died_s:.1f} s later all train again, {where}", "good"),
    ]
    return _page(height, labels, bars, marks)


def _y(rank: int) -> int:
    return TOP + rank * LANE


def _rect(box: Box, x: float, width: float) -> str:
    shape = f'x="{x:.1f}" y="{_y(box.rank)}" width="{max(width, 0.5):.1f}" height="{LANE - 8}"'
    return f'<rect class="{box.phase}" {shape}><title>rank {box.rank}, step {box.step}: {box.phase}</title></rect>'


def _words(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}">{escape(words)}</text>'


def _page(height: int, labels: list[str], bars: list[str], marks: list[str]) -> str:
    legend, x = [], LEFT
    for phase in LEGEND:
        legend.append(f'<rect class="{phase}" x="{x}" y="22" width="14" height="14"/>{_words(x + 20, 34, phase, "")}')
        x += 34 + 9 * len(phase)
    light, dark = (
        "".join(f".{phase}{{fill:{colors[side]}}}" for phase, colors in PHASE_COLORS.items()) for side in (0, 1)
    )
    style = (
        "text{font:15px system-ui,sans-serif;fill:#1b1d21}.ground{fill:#f6f6f2}"
        f"{light}.line{{fill:#1b1d21}}text.dead{{fill:#b3261e;font-weight:600}}path.dead{{stroke:#b3261e;stroke-width:4}}"
        "text.good{fill:#146c4c;font-weight:600}"
        "@media(prefers-color-scheme:dark){text{fill:#e6e6e0}.ground{fill:#14171a}"
        f"{dark}.line{{fill:#e6e6e0}}text.dead{{fill:#ff8a80}}path.dead{{stroke:#ff8a80}}"
        "text.good{fill:#57d3a0}}"
        ".line{display:none}@media(prefers-reduced-motion:no-preference){.line{display:inline}"
        f"#uncovered rect{{transform-origin:{LEFT}px 0;animation:uncover {SECONDS}s linear infinite}}"
        f".line{{animation:move {SECONDS}s linear infinite}}}}"
        f"@keyframes uncover{{from{{transform:scaleX(0)}}{PLAYED:.0%}{{transform:none}}to{{transform:none}}}}"
        f"@keyframes move{{{PLAYED:.0%},to{{transform:translateX({WIDTH - LEFT}px)}}}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            "<title>Four ranks train; rank 1 is killed; all start again and resume from the last checkpoint</title>",
            f"<style>{style}</style>",
            f'<clipPath id="uncovered"><rect x="{LEFT}" y="0" width="{WIDTH - LEFT}" height="{height}"/></clipPath>',
            f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
            *legend,
            *labels,
            '<g clip-path="url(#uncovered)">',
            *bars,
            *marks,
            "</g>",
            f'<rect class="line" x="{LEFT - 1}" y="{TOP - 8}" width="2" height="{height - TOP - 30}"/>',
            "</svg>",
            "",
        ]
    )


def main() -> int:
    """Write the picture of a run to standard output."""
    if len(sys.argv) != 2:
        print("usage: python -m tools.site.moving_run RUN", file=sys.stderr)
        return 2
    print(draw(worlds_of(read_run(RunFolder(Path(sys.argv[1]))).attempts)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
