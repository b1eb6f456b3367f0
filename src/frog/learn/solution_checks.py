"""Test the grader: a stub is unsolved, a reference passes, each wrong solution is rejected for the right reason."""

from __future__ import annotations

import argparse
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.files import write_atomic
from frog.learn.grader.client import NUM_SEEDS, Grader
from frog.learn.grader.exercise import LABS, Exercise, find_exercise, find_exercises
from frog.learn.grader.verdict import Verdict
from frog.learn.predictions import is_near_enough
from frog.learn.rules import broken_rules, style_problems

SOLUTIONS_TABLE = "labs/SOLUTIONS.md"
_HEAD = """# Solutions: what each exercise passes and rejects

Written by `frog learn dev check --write`, or for one exercise by `frog learn dev check NAME --write`. The stub of each
exercise is unsolved, the reference and other right solutions pass, and each wrong one is rejected for its own reason. A
test verifies this.
"""
_SECTION = re.compile(r"^## ", re.MULTILINE)

_ONE_OF_MANY = re.compile(
    r"(?<![\d.,])1 (batches|bytes|GPUs|labels|losses|ranks|rows|steps|times|tokens|values|weights)\b"
)
_TWO_NUMBERS = re.compile(
    r"(?:found|is|was|has|returned|had the loss) (?P<a>-?\d[\d.e+-]*\d)[,;.]? "
    r"(?:expected|torch's is|[Aa] run that never stopped has|but(?: [a-z ]+)?) (?P<b>-?\d[\d.e+-]*\d)"
)


def misworded(text: str) -> bool:
    """Return True if a sentence says "1 bytes", or contrasts two numbers that are printed alike."""
    return bool(_ONE_OF_MANY.search(text)) or any(pair["a"] == pair["b"] for pair in _TWO_NUMBERS.finditer(text))


@dataclass(frozen=True)
class SolutionCase:
    """One solution of an exercise, and the verdict that a check must give it."""

    exercise: Exercise
    kind: str
    """`stub`, `reference`, `right` or `wrong`."""
    name: str
    files: dict[str, bytes]
    misconception: str | None = None

    @property
    def title(self) -> str:
        return f"{self.exercise.id} {self.kind}{'/' + self.name if self.name else ''}"

    @property
    def seed(self) -> int:
        """Seed of its repeatable check, different for each solution. `frog learn dev check` draws new seeds instead."""
        return zlib.crc32(self.title.encode()) % NUM_SEEDS

    def problem(self, verdict: Verdict) -> str | None:
        """Describe how a verdict differs from the required one; None if it does not."""
        expected = {"stub": "unsolved", "wrong": "rejected"}.get(self.kind, "passed")
        reason = verdict.misconception if self.kind == "wrong" else None
        if (verdict.status, reason) == (expected, self.misconception):
            wording = self._of_wording(verdict)
            return self._of_predictions(verdict) if self.kind == "reference" and wording is None else wording
        wanted = _status_text(expected, self.misconception)
        given = _status_text(verdict.status, verdict.misconception)
        return f"{self.title}: expected {wanted}, found {given} (seed {verdict.seed}): {verdict.observed or ''}"

    def _of_wording(self, verdict: Verdict) -> str | None:
        """Describe a sentence of labs 0 and 1 that is worded badly."""
        said = verdict.observed or ""
        return f"{self.title}: is worded badly: {said}" if self.exercise.lab < 2 and misworded(said) else None

    def _of_predictions(self, verdict: Verdict) -> str | None:
        """Describe a prediction that a passing reference does not measure, or a belief too close to its value."""
        for asked in self.exercise.manifest.predict:
            measured = verdict.predicted.get(asked.id)
            if measured is None:
                return f"{self.title}: passed, but did not measure {asked.id}"
            for wrong in asked.beliefs:
                if is_near_enough(wrong.number(measured), measured, asked.tolerance):
                    value = f"{asked.id} is {measured:g}"
                    return f"{self.title}: {value}, which is too close to this belief: {wrong.belief}"
        return None


def _status_text(status: str, misconception: str | None) -> str:
    return f"{status} for {misconception}" if misconception else status


def solution_cases(exercise: Exercise) -> list[SolutionCase]:
    """Return all solutions of an exercise, with the stub."""
    cases = [SolutionCase(exercise, "stub", "", exercise.stub())]
    cases.append(SolutionCase(exercise, "reference", "", exercise.reference()))
    for right in exercise.solutions("right"):
        cases.append(SolutionCase(exercise, "right", right.name, right.files()))
    for wrong in exercise.solutions("wrong"):
        cases.append(SolutionCase(exercise, "wrong", wrong.name, wrong.files(), wrong.misconception))
    return cases


def check_cases(
    cases: Sequence[SolutionCase], workers: int = 2, seed: int | None = None
) -> Iterator[tuple[SolutionCase, Verdict]]:
    """Check all solutions with this many concurrent workers."""
    graders = [Grader() for _ in range(min(workers, len(cases)))]
    idle = list(graders)

    def check(case: SolutionCase) -> tuple[SolutionCase, Verdict]:
        grader = idle.pop()
        try:
            return case, grader.check(case.exercise, case.files, seed)
        finally:
            idle.append(grader)

    try:
        with ThreadPoolExecutor(len(graders)) as pool:
            yield from pool.map(check, cases)
    finally:
        for grader in graders:
            grader.close()


def table(exercises: Sequence[Exercise]) -> str:
    """Return the text of labs/SOLUTIONS.md."""
    return "\n".join([_HEAD, *map(section, exercises)])


def section(exercise: Exercise) -> str:
    """Return the section of labs/SOLUTIONS.md about one exercise."""
    right = [solution.name for solution in exercise.solutions("right")]
    also = f" Also right: {', '.join(right)}." if right else ""
    lines = [f"## {exercise.number} {exercise.manifest.title}\n", f"`{exercise.id}`.{also}\n"]
    lines += ["| wrong solution | misconception behind it |", "|---|---|"]
    for solution in exercise.solutions("wrong"):
        misconception = exercise.misconception(solution.misconception)
        belief = misconception.belief if misconception else "found in any exercise"
        lines.append(f"| {solution.name} | {belief} |")
    return "\n".join([*lines, ""])


def updated(text: str, exercises: Sequence[Exercise], checked: Sequence[Exercise]) -> str:
    """Return labs/SOLUTIONS.md with the sections of `checked` rewritten and all others unchanged."""
    sections = {part.split()[0]: f"## {part.rstrip()}\n" for part in _SECTION.split(text)[1:]}
    sections |= {exercise.number: section(exercise) for exercise in checked}
    return "\n".join([_HEAD, *(sections[known.number] for known in exercises if known.number in sections)])


# ---- frog learn dev --------------------------------------------------------------------------------------------------


def write_table(args: argparse.Namespace) -> int:
    """`frog learn dev table`: write labs/SOLUTIONS.md without checking any solution."""
    path = Path(SOLUTIONS_TABLE)
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, table(find_exercises()))
    print(path)
    return 0


def check(args: argparse.Namespace) -> int:
    """`frog learn dev check`: apply the rules, check all solutions, and compare labs/SOLUTIONS.md with them."""
    labs = (args.labs or LABS).resolve()
    exercises = [find_exercise(name, labs) for name in args.exercise] or find_exercises(labs)
    broken = [*broken_rules(labs, exercises), *style_problems(exercises)]
    for problem in broken:
        print(f"NOT  {problem}", flush=True)
    problems = _check_solutions(exercises, args)
    if problems or broken or args.labs is not None:
        return int(bool(problems or broken))
    if args.exercise and not args.write:
        return 0
    return _table_is_true(exercises if args.exercise else None, args.write)


def _check_solutions(exercises: Sequence[Exercise], args: argparse.Namespace) -> list[str]:
    """Check the solutions that the arguments select, print a line for each, and return what is not as expected."""
    cases = [case for exercise in exercises for case in solution_cases(exercise)] * args.times
    cases = [case for case in cases if args.only in f"{case.exercise.id} {case.kind}/{case.name}"]
    if not cases:
        raise UsageError(f"--only {args.only}: no solution name contains this word", "omit --only to see all solutions")
    start, problems = time.monotonic(), []
    for case, verdict in check_cases(cases, args.workers):
        problem = case.problem(verdict)
        print(f"{'ok ' if problem is None else 'NOT'} {verdict.seconds:5.1f} s  {case.title}", flush=True)
        if problem is not None:
            problems.append(problem)
            print(f"    {problem}", flush=True)
    print(f"{len(cases) - len(problems)} of {len(cases)} as expected, in {time.monotonic() - start:.0f} s")
    return problems


def _table_is_true(checked: Sequence[Exercise] | None, write: bool) -> int:
    """Compare labs/SOLUTIONS.md with the exercises, or write it; only the sections of `checked` if given."""
    path, course = Path(SOLUTIONS_TABLE), find_exercises()
    text = table(course)
    if checked is not None and path.exists():
        text = updated(path.read_text(), course, checked)
    if write:
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, text)
    elif path.exists() and path.read_text() != text:
        print(f"{path} is out of date\n  try: frog learn dev check --write")
        return 1
    return 0
