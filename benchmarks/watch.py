"""The live page at 64 ranks: frames per second in Chromium, size of the saved page, time to read the events.

    python benchmarks/watch.py [--ranks 64] [--steps 50000] [--seconds 5]

Builds the film of a run whose ranks differ by some percent, from events as the trainer writes them (eight ranks; the
others repeat their lanes). Opens its saved page in Chromium without a GPU, at 1300 x 900. Plays the whole run, then a
part that the view follows, then drags through it. A frame is one call of requestAnimationFrame; Chromium makes at most
60 per second. Other programs' load lowers the rate of frames, not the processor time of one: 60 per second need less
than 16.7 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "tools" / "site"))
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from browser import Tab, chromium, find_browser

from frog.core.runs.event_schema import CollectiveEvent, SpanEvent, StartEvent, StepEvent
from frog.observe.watch.film import Film, Lane, Words
from frog.observe.watch.film_page import saved_page
from frog.observe.watch.trained_lanes import MOST_ROWS, Point, TrainedRank, curves, steps_of

_DISTINCT = 8
START_NS = 1_750_000_000 * 10**9
PHASE_MS = {"data": 1.0, "forward": 30.0, "backward": 60.0, "reduce": 12.0, "optimize": 8.0, "zero": 0.4}
MEASURE = """new Promise(done => {
  const times = [], spent = []
  let before = 0, begun = 0
  const frame = now => {
    begun ||= now
    if (before) { times.push(now - before); spent.push(frogWatch.state().spent) }
    before = now
    DRAG
    if (now - begun < LIMIT) return requestAnimationFrame(frame)
    times.sort((a, b) => a - b); spent.sort((a, b) => a - b)
    const at = (values, share) => values[Math.min(values.length - 1, Math.floor(share * values.length))]
    done(JSON.stringify({ fps: 1000 * times.length / (now - begun), p95: at(times, 0.95), worst: times.at(-1),
                          spent: at(spent, 0.5), spent95: at(spent, 0.95) }))
  }
  requestAnimationFrame(frame)
})"""
DRAG = "const s = frogWatch.state(); frogWatch.seek(s.end * (0.5 + 0.5 * Math.sin((now - begun) / 700)));"
WAYS = {
    "play the whole run": (
        "document.getElementById('zoom-all').click(); document.getElementById('speed').value = 'fit';"
        "frogWatch.seek(0); document.getElementById('play').click()",
        "",
    ),
    "play, view follows": (
        "frogWatch.seek(frogWatch.state().end * 0.98);"
        "for (let i = 0; i < 9; i++) document.getElementById('zoom-in').click();"
        "document.getElementById('speed').value = '10'; document.getElementById('play').click()",
        "",
    ),
    "drag, zoomed in": (
        "document.getElementById('play').getAttribute('aria-pressed') === 'true' "
        "&& document.getElementById('play').click()",
        DRAG,
    ),
}


def make_film(num_ranks: int, num_steps: int) -> tuple[Film, float]:
    """Return the film of a run, and the seconds that one rank's events took."""
    words, points = Words(), dict[tuple[int, int], Point]()
    film = Film("benchmark", "completed", "train", "", START_NS, 0, False, words=words.rows)
    took_s = 0.0
    made: list[Lane] = []
    for number in range(min(_DISTINCT, num_ranks)):
        rank = TrainedRank(number, Path("none"), words, MOST_ROWS // max(4, num_ranks))
        began = time.perf_counter()
        feed(rank, num_ranks, num_steps, points)
        took_s += time.perf_counter() - began
        made.append(rank.lane(START_NS, None, 0))
        film.end = max(film.end, (rank.last_ns - START_NS) // 1000)
    film.lanes = [replace(made[number % len(made)], rank=number) for number in range(num_ranks)]
    film.series, film.steps = curves(points.values(), START_NS), steps_of(points.values(), START_NS)
    return film, took_s / len(made)


def feed(rank: TrainedRank, world: int, num_steps: int, points: dict[tuple[int, int], Point]) -> None:
    """Give a rank the events of its steps."""
    draw = random.Random(rank.rank)
    start = {"step": 0, "rank": rank.rank, "world_size": world, "local_rank": 0, "node_rank": 0, "host": "h", "pid": 1}
    clock = {"device": "cpu", "threads": 1, "unix_ns": START_NS, "mono_ns": 0}
    rank.add(StartEvent(**start, **clock, mesh={"dp": world}, place={"dp": rank.rank}, passed_over=[]), points)
    none: dict[str, Any] = dict.fromkeys(
        ("loss_mean", "grad_norm_local", "grad_norm", "learning_rate", "mfu", "loss_scale")
    )
    more: dict[str, Any] = {"tokens": 9, "memory_bytes": 10**9, "skipped": False, "sample_ids": []}
    for step in range(1, num_steps + 1):
        at = step * 120_000_000
        for phase, typical_ms in PHASE_MS.items():
            end = at + int(typical_ms * draw.uniform(0.9, 1.1) * 1e6)
            rank.add(SpanEvent(step=step, phase=phase, micro=0, start_ns=at, end_ns=end), points)
            if phase == "reduce":
                call: dict[str, Any] = {"op": "all_reduce", "axis": "dp", "payload_bytes": 4096, "wait_ns": 0}
                rank.add(CollectiveEvent(step=step, seq=step, start_ns=at, end_ns=end, **call), points)
            at = end
        rate = 1e5 * draw.uniform(0.98, 1.02)
        rank.add(StepEvent(step=step, loss=2 + 5 / step, end_ns=at, tokens_per_s=rate, **none, **more), points)


def processor_s(tab: Tab) -> float:
    """Return the processor time of the page's main thread, which other programs' load does not change."""
    metrics = {one["name"]: one["value"] for one in tab.call("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    film, took_s = make_film(args.ranks, args.steps)
    page = saved_page(film)
    print(
        f"{args.ranks} ranks, {args.steps:,} steps: saved page of {len(page.encode()) / 1e6:.2f} MB; "
        f"{took_s:.1f} s to take the events of a rank"
    )
    program = find_browser()
    if program is None:
        print("no Chromium: frames were not measured")
        return 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # Chromium's processes end a little later
        path = Path(name) / "timeline.html"
        path.write_text(page)
        with chromium(program, Path(name) / "profile") as browser:
            tab = browser.new_tab()
            tab.show(1300, 900, "light")
            tab.open(path.as_uri())
            tab.call("Performance.enable", timeDomain="threadTicks")
            for way, (prepare, drag) in WAYS.items():
                tab.run(prepare)
                before_s = processor_s(tab)
                script = MEASURE.replace("LIMIT", str(1000 * args.seconds)).replace("DRAG", drag)
                found = json.loads(tab.run(script))
                frames = found["fps"] * args.seconds
                cpu_ms = 1e3 * (processor_s(tab) - before_s) / frames
                print(
                    f"{way:20} {found['fps']:5.1f} frames/s, 95 % within {found['p95']:.1f} ms, "
                    f"slowest {found['worst']:.0f} ms; "
                    f"own work {found['spent']:.1f} ms per frame, 95 % within {found['spent95']:.1f} ms; "
                    f"processor time of the page's thread {cpu_ms:.1f} ms per frame"
                )
            if tab.faults:
                print("faults:", *tab.faults)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
