"""Real runs for the slides, and the steps, phases and memory in their events."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median, median_low
from typing import Any

from frog.core.runs import RecordedRun, read_run
from frog.core.runs.event_schema import CollectiveEvent, MemoryEvent, SpanEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.vocabulary import STEP_PHASES

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "slides"
FROG = str(Path(sys.executable).parent / "frog")

Found = dict[str, Any]


class Commands:
    """Runs `frog` in WORK and records the commands."""

    def __init__(self) -> None:
        self.typed: list[str] = []

    def frog(self, line: str, fails: bool = False) -> str:
        self.typed.append(f"frog {line}")
        print(f"$ frog {line}", flush=True)
        words = [part.strip('"') for part in re.findall(r'"[^"]*"|\S+', line)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run([FROG, *words], cwd=WORK, env=env, capture_output=True, text=True, timeout=600)
        if (done.returncode != 0) != fails:
            raise SystemExit(f"{done.stdout}\n{done.stderr}\nfrog {line}: exit code {done.returncode}")
        return done.stdout + done.stderr

    def train(self, name: str, launch: str = "run --nproc 2 --", **settings: str | int) -> RecordedRun:
        """Train config/demo.toml under that name, and read the recorded run."""
        shutil.rmtree(WORK / "runs" / name, ignore_errors=True)
        changes = "".join(f" --set {key.replace('__', '.')}={value}" for key, value in settings.items())
        self.frog(f"{launch} train config/demo.toml --set name={name}{changes}".strip())
        return read_run(RunFolder(WORK / "runs" / name))


def steps_of(run: RecordedRun, rank: int = 0) -> list[StepEvent]:
    return list(run.ranks[rank].by_step(StepEvent).values())


def phase_ms(run: RecordedRun, rank: int = 0) -> dict[str, float]:
    """Return the median time of each phase over all steps except the first."""
    sums: Counter[tuple[str, int]] = Counter()
    for span in run.ranks[rank].of(SpanEvent):
        sums[span.phase, span.step] += span.end_ns - span.start_ns
    phases = {phase for phase, _ in sums}
    return {p: round(median(ns for (q, step), ns in sums.items() if q == p and step > 1) / 1e6, 3) for p in phases}


def step_times_ms(run: RecordedRun) -> dict[int, float]:
    """Return the time from the previous step's end to each step's end; other programs on the machine lengthen some."""
    steps = steps_of(run)
    return {b.step: (b.end_ns - a.end_ns) / 1e6 for a, b in pairwise(steps)}


def step_ms(run: RecordedRun) -> float:
    """Return the median step time."""
    return round(median(step_times_ms(run).values()), 2)


def median_step(run: RecordedRun) -> int:
    """Return the step with the median time; if there are two, the shorter one."""
    times = step_times_ms(run)
    return min(times, key=lambda step: (times[step] != median_low(times.values()), step))


def lanes(run: RecordedRun, step: int) -> list[Found]:
    """Return the phases and collectives of one step per rank, in ms from the step's start."""
    spans = {
        rank: [s for s in events.of(SpanEvent) if s.step == step and s.phase in STEP_PHASES]
        for rank, events in run.ranks.items()
    }
    start = min(span.start_ns for found in spans.values() for span in found)
    ms = lambda ns: round((ns - start) / 1e6, 3)  # noqa: E731
    return [
        {
            "rank": rank,
            "spans": [[span.phase, ms(span.start_ns), ms(span.end_ns)] for span in found],
            "collectives": [
                [call.op, call.payload_bytes, ms(call.start_ns), ms(call.end_ns)]
                for call in run.ranks[rank].of(CollectiveEvent)
                if call.step == step
            ],
        }
        for rank, found in sorted(spans.items())
    ]


def memory_of(run: RecordedRun, rank: int = 0) -> Found:
    last = run.ranks[rank].last(MemoryEvent)
    assert last is not None
    names = ("parameters", "gradients", "optimizer", "activations")
    return {name: getattr(last, name) for name in names}
