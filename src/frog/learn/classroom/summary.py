"""The tables of the class page: progress, obstacles, predictions, quizzes and drills."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import mean, median
from typing import Any

from frog.learn.classroom.reports import Report
from frog.learn.grader.exercise import Exercise, Prediction
from frog.learn.grader.general import general
from frog.learn.progress import DrillResult, Guess, QuizResult, Work
from frog.learn.quantity import relative_error

_MOST_TIMES = 16
"""The chart clips guesses that are off by more than this factor to its edge."""


def columns(reports: Sequence[Report], course: Sequence[Exercise]) -> list[dict[str, Any]]:
    """Return the exercises of all labs that any learner has started, then those unknown to this version of Frog."""
    begun = {record.id: record for report in reports for record in report.export.exercises}
    labs = {name.partition("/")[0] for name in begun}
    exercise_columns = [
        {
            "id": exercise.id,
            "lab": exercise.id.partition("/")[0],
            "number": exercise.number,
            "title": exercise.manifest.title,
        }
        for exercise in course
        if exercise.id.partition("/")[0] in labs
    ]
    known = {exercise["id"] for exercise in exercise_columns}
    return exercise_columns + [
        {"id": name, "lab": "elsewhere", "number": record.number, "title": record.title}
        for name, record in sorted(begun.items())
        if name not in known
    ]


def labs_of(exercises: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the grid's headings: each lab and its number of columns."""
    grouped = groupby(exercises, key=lambda exercise: str(exercise["lab"]))
    return [(lab.replace("lab", "lab ", 1), len(list(ones))) for lab, ones in grouped]


def cell(work: Work) -> dict[str, str]:
    """Return a learner's mark for an exercise, and its meaning."""
    words = [f"{work.checks} checks", f"{work.hints} hints"]
    if work.passed:
        return {"kind": "passed", "mark": "✓", "words": f"passed {work.passed.at[:16]}, {', '.join(words)}"}
    if work.gave_up:
        return {"kind": "stuck", "mark": "S", "words": f"solution taken {work.gave_up[:16]}, {', '.join(words)}"}
    if work.checks or work.hints:
        return {"kind": "stuck", "mark": str(work.checks), "words": f"not passed, {', '.join(words)}"}
    return {"kind": "", "mark": "", "words": "not started"}


def stops(reports: Sequence[Report], exercises: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the exercises where learners are stuck, took help, or had a solution rejected; worst first."""
    rows = []
    for exercise in exercises:
        every = [report.work(exercise["id"]) for report in reports]
        works = [work for work in every if work != Work(shipped=work.shipped)]
        passed = [work for work in works if work.passed]
        rows.append(
            {
                **exercise,
                "begun": len(works),
                "passed": len(passed),
                "stuck": len(works) - len(passed),
                "checks": f"{median(work.checks for work in passed):g}" if passed else "",
                "hints": sum(work.hints for work in works),
                "solutions": sum(work.gave_up is not None for work in works),
                "rejected": sum(work.rejected != {} for work in works),
            }
        )
    told = [row for row in rows if row["stuck"] or row["hints"] or row["solutions"] or row["rejected"]]
    return sorted(told, key=lambda row: (-row["stuck"], -row["solutions"], -row["hints"], -row["rejected"]))


def misconceptions(reports: Sequence[Report], course: Sequence[Exercise]) -> list[dict[str, Any]]:
    """Return the misconceptions that checks found, sorted by number of learners."""
    by_id, everywhere = {known_exercise.id: known_exercise for known_exercise in course}, general()
    met: dict[tuple[str, str], list[tuple[int, bool]]] = {}
    numbers = {}
    for record in (record for report in reports for record in report.export.exercises):
        numbers[record.id] = record.number
        for name, rejected in record.work.rejected.items():
            met.setdefault((record.id, name), []).append((rejected.times, record.work.passed is None))
    rows = []
    for (exercise, name), meetings in met.items():
        known = (by_id[exercise].misconception(name) if exercise in by_id else None) or everywhere.get(name)
        rows.append(
            {
                "number": numbers[exercise],
                "belief": known.belief if known else name,
                "learners": len(meetings),
                "times": sum(times for times, _ in meetings),
                "stuck": sum(still for _, still in meetings),
            }
        )
    return sorted(rows, key=lambda row: (-row["learners"], -row["stuck"], -row["times"]))


def predictions(reports: Sequence[Report], course: Sequence[Exercise]) -> list[dict[str, Any]]:
    """Compare each learner's first prediction of each number with its measurement."""
    firsts: dict[tuple[str, str], list[Guess]] = {}
    for report in reports:
        seen: set[tuple[str, str]] = set()
        for guess in report.export.predictions:
            if (key := (guess.exercise, guess.id)) not in seen:
                seen.add(key)
                firsts.setdefault(key, []).append(guess)
    asked = {(exercise.id, p.id): (exercise.number, p) for exercise in course for p in exercise.manifest.predict}
    rows = [_prediction_row(key, guesses, *asked.get(key, (key[0], None))) for key, guesses in sorted(firsts.items())]
    return [row for row in rows if row["measured"]]


def _prediction_row(
    key: tuple[str, str], guesses: Sequence[Guess], number: str, asked: Prediction | None
) -> dict[str, Any]:
    pairs = [(guess.value, guess.measured) for guess in guesses if guess.measured is not None]
    tolerance = asked.tolerance if asked else 0.0
    errors = [relative_error(value, measured) for value, measured in pairs]
    near = [error is not None and error <= tolerance for error in errors]
    dots = [
        {"x": place_of(times(value, measured)), "near": good}
        for (value, measured), good in zip(pairs, near, strict=True)
    ]
    off = [times(value, measured) for (value, measured), good in zip(pairs, near, strict=True) if not good]
    return {
        "number": number,
        "id": key[1],
        "question": asked.question if asked else "",
        "measured": len(pairs),
        "near": sum(near),
        "exact": sum(error == 0 for error in errors),
        "much": sum(value > measured for (value, measured), good in zip(pairs, near, strict=True) if not good),
        "little": sum(value < measured for (value, measured), good in zip(pairs, near, strict=True) if not good),
        "typical": _typical(off),
        "dots": dots,
    }


def times(value: float, measured: float) -> float:
    """Return the ratio of guess to measurement, clipped to 1/16 and 16."""
    if value == measured:
        return 1.0
    if value * measured <= 0 or not math.isfinite(value / measured):
        return float(_MOST_TIMES) if value > measured else 1 / _MOST_TIMES
    return max(1 / _MOST_TIMES, min(_MOST_TIMES, value / measured))


def place_of(ratio: float) -> float:
    """Return a ratio's position on a strip 200 wide, with 1 in the middle."""
    return round(100 + 90 * math.log2(ratio) / math.log2(_MOST_TIMES), 1)


def _typical(off: Sequence[float]) -> str:
    """Describe the median error if all errors are on the same side."""
    if not off:
        return ""
    return _times_in_words(median(off)) if min(off) > 1 or max(off) < 1 else "on both sides"


def _times_in_words(ratio: float) -> str:
    most = "at least " if ratio in (_MOST_TIMES, 1 / _MOST_TIMES) else ""
    how, amount = ("much", ratio) if ratio > 1 else ("little", 1 / ratio)
    return f"{most}{amount:.2g} times too {how}"


def quizzes(named: Iterable[tuple[str, Report]]) -> list[dict[str, Any]]:
    """Return the first and the last quiz round by lab and learner."""
    rounds: dict[tuple[int, str], list[QuizResult]] = {}
    for name, report in named:
        for result in report.export.quizzes:
            rounds.setdefault((-1 if result.lab is None else result.lab, name), []).append(result)
    return [
        {
            "lab": "all labs" if lab < 0 else f"lab {lab}",
            "name": name,
            "rounds": len(taken),
            "first": f"{taken[0].right} of {taken[0].asked}",
            "last": f"{taken[-1].right} of {taken[-1].asked}" if len(taken) > 1 else "",
        }
        for (lab, name), taken in sorted(rounds.items())
    ]


def drills(named: Iterable[tuple[str, Report]]) -> list[dict[str, Any]]:
    """Return each learner's number of drills, and the scores of the first and the last one."""
    taken = [(name, report.export.drills) for name, report in named if report.export.drills]
    return [
        {"name": name, "times": len(own), "first": _score(own[0]), "last": _score(own[-1]) if own[1:] else ""}
        for name, own in taken
    ]


def _score(drill: DrillResult) -> str:
    return f"{drill.right} of 3 ({drill.fault})"


def gained(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Return the mean scores of first and last rounds by lab, for learners with two or more rounds."""
    shares: dict[int, list[tuple[float, float]]] = {}
    for report in reports:
        by_lab: dict[int, list[QuizResult]] = {}
        for result in report.export.quizzes:
            if result.asked:
                by_lab.setdefault(-1 if result.lab is None else result.lab, []).append(result)
        for lab, taken in by_lab.items():
            if len(taken) > 1:
                first, last = taken[0], taken[-1]
                shares.setdefault(lab, []).append((first.right / first.asked, last.right / last.asked))
    return [
        {
            "lab": "all labs" if lab < 0 else f"lab {lab}",
            "learners": len(pairs),
            "before": f"{100 * mean(first for first, _ in pairs):.0f} %",
            "after": f"{100 * mean(last for _, last in pairs):.0f} %",
        }
        for lab, pairs in sorted(shares.items())
    ]


def quiz_beliefs(reports: Sequence[Report]) -> list[tuple[str, int]]:
    """Return the misconceptions behind wrong answers, with the number of learners for each."""
    counted = Counter(
        belief for report in reports for belief in {b for result in report.export.quizzes for b in result.beliefs}
    )
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:12]
