"""Waiting times of a learner: from saving a file to the verdict, and until the grader is ready.

    python benchmarks/learn.py [--rounds 5] [--solutions] [--only EXERCISE]

Each round checks every exercise's reference solution with a waiting grader that has torch loaded, as in `frog learn
watch`; the reference takes longest of all solutions except those that never end. `frog learn check`, a command that
must first load torch, runs once per round. Prints medians with the fastest and slowest times. With --solutions, every
solution of every exercise is checked once, two at a time.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from frog.learn.grader.client import Grader
from frog.learn.grader.exercise import Exercise, find_exercises
from frog.learn.solution_checks import check_cases, solution_cases

FIRST_WITH_A_WORLD = "lab2/01_average_gradients"


def line(name: str, seconds: Sequence[float], note: str = "") -> str:
    return f"{name:44} {statistics.median(seconds):6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f}){note}"


def watched(exercises: Sequence[Exercise], rounds: int) -> list[str]:
    """Time from saving a file to its verdict, with a waiting grader."""
    start = time.perf_counter()
    with Grader() as grader:
        grader.wait()
        lines = [line("grader ready (once)", [time.perf_counter() - start])]
        seconds: dict[str, list[float]] = {exercise.id: [] for exercise in exercises}
        worlds: dict[str, tuple[int, ...]] = {}
        for _ in range(rounds):
            for exercise in exercises:
                start = time.perf_counter()
                verdict = grader.check(exercise, exercise.reference())
                if verdict.status != "passed":
                    raise SystemExit(f"{exercise.id}: {verdict.status}: {verdict.observed}")
                seconds[exercise.id].append(time.perf_counter() - start)
                worlds[exercise.id] = verdict.worlds
    return [*lines, *(line(name, found, f"  worlds {worlds[name]}") for name, found in seconds.items())]


def cold(rounds: int) -> list[str]:
    """Time `frog learn check` from Enter to its end, with torch not loaded."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "frog.cli", "learn"]
        subprocess.run([*command, "init", "course"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for _ in range(rounds):
            start = time.perf_counter()
            check = [*command, "check", FIRST_WITH_A_WORLD]
            subprocess.run(check, cwd=Path(folder) / "course", stdout=subprocess.DEVNULL, timeout=120)
            seconds.append(time.perf_counter() - start)
    return [line(f"frog learn check {FIRST_WITH_A_WORLD}", seconds, "  the stub")]


def solutions(exercises: Sequence[Exercise]) -> list[str]:
    """Check every solution of every exercise, two at a time."""
    cases = [case for exercise in exercises for case in solution_cases(exercise)]
    start = time.perf_counter()
    wrong = [problem for case, verdict in check_cases(cases) if (problem := case.problem(verdict))]
    seconds = time.perf_counter() - start
    return [f"{len(cases)} solutions, {len(wrong)} with another verdict, {seconds:.0f} s", *wrong]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--solutions", action="store_true")
    parser.add_argument("--only", metavar="EXERCISE", default="", help="only exercises whose name starts with this")
    args = parser.parse_args()
    exercises = [exercise for exercise in find_exercises() if exercise.id.startswith(args.only)]
    print(f"medians of {args.rounds} rounds (fastest to slowest)")
    lines = watched(exercises, args.rounds) + cold(args.rounds) + (solutions(exercises) if args.solutions else [])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
