"""Time that a world takes to start, and to restart after one of its ranks was killed.

    python benchmarks/start.py [--rounds 5] [--against FOLDER]

It compares, in alternating rounds: ranks forked from a process that has torch loaded; ranks started as new programs
(FROG_START=spawn); and with --against the code of another checkout. Each variant has its own folder with a tiny model
and text. Prints the medians with the fastest and the slowest round, and the ratio to the slowest variant.

- one step: from Enter to the end of `frog run --nproc 4 -- train` of one step
- again: at world 2 with --restarts, from SIGKILL of rank 1 to the end of the next step of rank 0
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
DEADLINE_S = 300.0


@dataclass
class Way:
    """A way to start ranks, and its times in seconds."""

    name: str
    source: Path
    folder: Path
    start: str = ""
    one_step_s: list[float] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)

    def popen(self, *words: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONPATH": str(self.source), "FROG_START": self.start, "OMP_NUM_THREADS": "1"}
        command, nowhere = [sys.executable, "-m", "frog.cli", *words], subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.folder, env=env, stdout=nowhere, stderr=nowhere)

    def run(self, *words: str) -> None:
        if self.popen(*words).wait(DEADLINE_S):
            raise SystemExit(f"{self.name}: {' '.join(words)} failed")

    def measure_one_step(self, number: int) -> None:
        start = time.perf_counter()
        self.run("run", "--nproc", "4", "--", *self.train(f"one-{number}", "train.steps=1"))
        self.one_step_s.append(time.perf_counter() - start)

    def measure_again(self, number: int) -> None:
        name = f"again-{number}"
        words = self.train(name, "train.steps=100000", "checkpoint.every=100", "eval.every=100000")
        process = self.popen("run", "--nproc", "2", "--restarts", "1", "--", *words)
        rank_0, launcher = (self.folder / "runs" / name / "events" / f"{who}.jsonl" for who in ("rank_0", "launcher"))
        wait_for(rank_0, "commit")
        (world,) = (event for event in read(launcher) if event["event"] == "world")
        start = time.perf_counter()
        os.kill(world["pids"][1], signal.SIGKILL)
        wait_for(rank_0, "step", after="start")
        self.again_s.append(time.perf_counter() - start)
        process.terminate()
        process.wait(DEADLINE_S)

    def train(self, name: str, *settings: str) -> list[str]:
        words = [word for setting in (f"name={name}", *settings) for word in ("--set", setting)]
        return ["train", "chaos/tiny.toml", *words]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of an event file, which another process may be writing."""
    text = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


def wait_for(path: Path, kind: str, after: str | None = None) -> None:
    """Wait until the file has such an event; with `after`, one that follows the second event of that kind."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        kinds = [event["event"] for event in read(path)]
        begins = [place for place, name in enumerate(kinds) if name == after]
        if kind in kinds[begins[1] if len(begins) > 1 else len(kinds) if after else 0 :]:
            return
        time.sleep(0.005)
    raise SystemExit(f"{path}: no {kind} within {DEADLINE_S:g} s")


def prepare(way: Way) -> None:
    """Create the tiny text and model of `frog chaos`; the code that will read the tokens prepares them."""
    way.folder.mkdir()
    package = "frog.measure.chaos" if (way.source / "frog" / "measure").exists() else "frog.chaos"  # before seven rooms
    tiny = f"from {package}.sandbox import tiny_program; tiny_program()"
    env = {**os.environ, "PYTHONPATH": str(way.source)}
    subprocess.run([sys.executable, "-c", tiny], cwd=way.folder, env=env, check=True)


def table(ways: list[Way]) -> str:
    lines = [f"{'':<40}{'one step, world 4':>30}{'SIGKILL to next step, world 2':>34}"]
    slowest = ways[-1]
    for way in ways:
        cells = [
            f"{statistics.median(mine):6.2f} s ({min(mine):.2f} to {max(mine):.2f}) "
            f"{statistics.median(mine) / statistics.median(theirs):5.2f} x"
            for mine, theirs in ((way.one_step_s, slowest.one_step_s), (way.again_s, slowest.again_s))
        ]
        lines.append(f"{way.name:<40}{cells[0]:>30}{cells[1]:>34}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="a checkout of earlier code, for comparison")
    parser.add_argument("--tiny", action="store_true", help="one round, forked only, to check that it runs")
    args = parser.parse_args()
    scratch, rounds = Path(tempfile.mkdtemp(prefix="frog-start-")), 1 if args.tiny else args.rounds
    ways = [
        Way("ranks forked", SOURCE, scratch / "forked"),
        Way("ranks spawned", SOURCE, scratch / "spawned", start="spawn"),
    ]
    ways = ways[:1] if args.tiny else ways
    if args.against is not None:
        ways.append(Way("the code before", args.against.resolve() / "src", scratch / "before"))
    for way in ways:
        prepare(way)
    for number in range(rounds):
        for way in ways:
            way.measure_one_step(number)
            way.measure_again(number)
            print(f"{way.name}: {way.one_step_s[-1]:.2f} s, again {way.again_s[-1]:.2f} s", file=sys.stderr)
    print(f"{rounds} rounds; median (fastest to slowest)\n\n{table(ways)}", end="")


if __name__ == "__main__":
    main()
