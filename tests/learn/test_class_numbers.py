"""The numbers of the class page, from exports of a few lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frog.learn.classroom import summary
from frog.learn.classroom.reports import Report
from frog.learn.export import ExerciseRecord, Export
from frog.learn.progress import DrillResult, Guess, Passed, QuizResult, Rejected, Work

AT = "2026-03-02 09:00:00.000"
PASSED = Passed(at=AT, by="frog 0", seed=1)


def report(**changes: Any) -> Report:
    usual = {"learner": "Ada", "began": AT, "exported": AT, "frog": "0", "passed": 0, "of": 1}
    empty: dict[str, Any] = {"exercises": (), "predictions": (), "quizzes": ()}
    return Report(Path("a"), Export(**{**usual, **empty, **changes}))


def record(id: str, number: str, work: Work) -> ExerciseRecord:
    return ExerciseRecord(id=id, number=number, title="A", minutes=5, work=work, files={})


def works(*works: Work, number: str = "1.1") -> list[Report]:
    return [report(exercises=(record("lab1/01_a", number, work),)) for work in works]


@pytest.mark.parametrize(
    ("work", "kind", "mark", "words"),
    [
        (Work(), "", "", "not started"),
        (Work(shipped={"a.py": "0" * 64}), "", "", "not started"),
        (Work(checks=3), "stuck", "3", "not passed, 3 checks, 0 hints"),
        (Work(hints=1), "stuck", "0", "not passed, 0 checks, 1 hints"),
        (Work(checks=2, hints=1, gave_up=AT), "stuck", "S", "solution taken 2026-03-02 09:00, 2 checks, 1 hints"),
        (Work(checks=2, gave_up=AT, passed=PASSED), "passed", "✓", "passed 2026-03-02 09:00, 2 checks, 0 hints"),
    ],
)
def test_cell_says_what_became_of_an_exercise(work: Work, kind: str, mark: str, words: str) -> None:
    assert summary.cell(work) == {"kind": kind, "mark": mark, "words": words}


def test_exercises_where_learners_stop_come_worst_first() -> None:
    columns = [{"id": f"lab1/{name}", "number": name} for name in "abcd"]

    def of(name: str, work: Work) -> ExerciseRecord:
        return record(f"lab1/{name}", name, work)

    rejected = {"x": Rejected(times=2, last=AT)}
    first = [
        of("a", Work(checks=4, passed=PASSED)),
        of("b", Work(checks=1, hints=2)),
        of("c", Work(hints=3, passed=PASSED)),
    ]
    second = [
        *[of("a", Work(checks=1, passed=PASSED)), of("b", Work(checks=5, passed=PASSED, gave_up=AT))],
        *[of("c", Work(checks=2, passed=PASSED, rejected=rejected)), of("d", Work(shipped={"a": "0" * 64}))],
    ]
    rows = summary.stops([report(exercises=tuple(first)), report(exercises=tuple(second))], columns)
    counts = ("begun", "passed", "stuck", "checks", "hints", "solutions", "rejected")
    assert [(row["number"], *(row[name] for name in counts)) for row in rows] == [
        ("b", 2, 1, 1, "5", 2, 1, 0),
        ("c", 2, 2, 0, "1", 3, 0, 1),
    ]


def test_misconceptions_are_counted_by_learner_and_by_rejection() -> None:
    def with_rejections(times: int, **changes: Any) -> Work:
        return Work(rejected={"sums": Rejected(times=times, last=AT)}, **changes)

    both = works(with_rejections(2), with_rejections(3, passed=PASSED), Work())
    other = works(Work(rejected={"rare": Rejected(times=9, last=AT)}), number="1.2")
    assert summary.misconceptions([*both, *other], []) == [
        {"number": "1.2", "belief": "sums", "learners": 2, "times": 5, "stuck": 1},
        {"number": "1.2", "belief": "rare", "learners": 1, "times": 9, "stuck": 1},
    ]


@pytest.mark.parametrize(
    ("value", "measured", "ratio"),
    [
        *[(3.0, 3.0, 1.0), (0.0, 0.0, 1.0), (6.0, 3.0, 2.0), (1.0, 4.0, 0.25), (-6.0, -3.0, 2.0)],
        *[(48.0, 3.0, 16.0), (49.0, 3.0, 16.0), (1.0, 16.0, 1 / 16), (1.0, 99.0, 1 / 16)],
        *[(5.0, 0.0, 16.0), (-5.0, 0.0, 1 / 16), (0.0, 3.0, 1 / 16), (4.0, -1.0, 16.0), (-4.0, 1.0, 1 / 16)],
    ],
)
def test_ratio_of_a_guess_is_clipped(value: float, measured: float, ratio: float) -> None:
    assert summary.times(value, measured) == ratio


def test_ratios_lie_on_a_strip_of_200() -> None:
    assert [summary.place_of(ratio) for ratio in (1 / 16, 0.25, 1.0, 2.0, 16.0)] == [10.0, 55.0, 100.0, 122.5, 190.0]


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ([4.0], (1, 1, 1, 0, 0, "")),
        ([8.0], (1, 0, 0, 1, 0, "2 times too much")),
        (
            [8.0, 16.0, 4.0],
            (3, 1, 1, 2, 0, "3 times too much"),
        ),
        ([1.0], (1, 0, 0, 0, 1, "4 times too little")),
        (
            [400.0],
            (1, 0, 0, 1, 0, "at least 16 times too much"),
        ),
        (
            [0.01],
            (1, 0, 0, 0, 1, "at least 16 times too little"),
        ),
        ([1.0, 8.0], (2, 0, 0, 1, 1, "on both sides")),
    ],
)
def test_first_predictions_are_compared_with_the_measurement(values: list[float], row: tuple[Any, ...]) -> None:
    def guess(value: float, measured: float | None = 4.0) -> Guess:
        return Guess(exercise="lab1/01_a", id="n", value=value, unit="", text="", at=AT, measured=measured)

    reports = [report(predictions=(guess(value), guess(999.0))) for value in values]
    (found,) = summary.predictions([*reports, report()], [])
    names = ("measured", "near", "exact", "much", "little", "typical")
    assert tuple(found[name] for name in names) == row
    assert (found["number"], found["id"], found["question"], len(found["dots"])) == ("lab1/01_a", "n", "", len(values))
    assert [dot["near"] for dot in found["dots"]] == [value == 4.0 for value in values]
    assert summary.predictions([report(predictions=(guess(1.0, None),))], []) == []


def quiz(lab: int | None, right: int, asked: int = 4, beliefs: tuple[str, ...] = ()) -> QuizResult:
    return QuizResult(lab=lab, at=AT, seed=1, asked=asked, right=right, beliefs=beliefs)


def test_first_and_last_rounds_of_quizzes_and_drills_are_shown() -> None:
    reports = [
        report(quizzes=(quiz(1, 1), quiz(1, 2), quiz(1, 4), quiz(None, 3))),
        report(quizzes=(quiz(1, 2), quiz(1, 3), quiz(0, 0, 0), quiz(0, 0, 0))),
        report(quizzes=(quiz(0, 4),)),
    ]
    rows = summary.quizzes(zip("abc", reports, strict=True))
    assert [tuple(row.values()) for row in rows] == [
        ("all labs", "a", 1, "3 of 4", ""),
        ("lab 0", "b", 2, "0 of 0", "0 of 0"),
        ("lab 0", "c", 1, "4 of 4", ""),
        ("lab 1", "a", 3, "1 of 4", "4 of 4"),
        ("lab 1", "b", 2, "2 of 4", "3 of 4"),
    ]
    assert summary.gained(reports) == [{"lab": "lab 1", "learners": 2, "before": "38 %", "after": "88 %"}]
    both = report(quizzes=(quiz(None, 1), quiz(None, 3)))
    assert summary.gained([both]) == [{"lab": "all labs", "learners": 1, "before": "25 %", "after": "75 %"}]
    drill = [DrillResult(at=AT, seed=1, fault="kill rank=0 step=1", right=right) for right in (1, 2, 3)]
    drilled = [("a", report(drills=tuple(drill))), ("b", report(drills=tuple(drill[:1]))), ("c", report())]
    assert [tuple(row.values()) for row in summary.drills(drilled)] == [
        ("a", 3, "1 of 3 (kill rank=0 step=1)", "3 of 3 (kill rank=0 step=1)"),
        ("b", 1, "1 of 3 (kill rank=0 step=1)", ""),
    ]


def test_twelve_beliefs_of_most_learners_are_listed() -> None:
    reports = [
        report(quizzes=(quiz(1, 1, beliefs=("often", "often", "b")), quiz(1, 1, beliefs=("often",)))),
        report(quizzes=(quiz(1, 1, beliefs=("often", "a", *(f"x{number:02}" for number in range(20)))),)),
    ]
    found = summary.quiz_beliefs(reports)
    assert (found[:3], len(found)) == ([("often", 2), ("a", 1), ("b", 1)], 12)


def test_labs_of_the_columns_are_counted() -> None:
    columns = [{"lab": "lab1"}, {"lab": "lab1"}, {"lab": "lab12"}, {"lab": "elsewhere"}]
    assert summary.labs_of(columns) == [("lab 1", 2), ("lab 12", 1), ("elsewhere", 1)]


@pytest.mark.parametrize(
    ("changes", "edits", "proof"),
    [
        ({}, (), "whole"),
        ({"named": "Grace"}, (), "no journal"),
        ({"exercises": (record("lab1/01_a", "1.1", Work(checks=1)),)}, (), "no journal"),
        ({"predictions": ("any",)}, (), "no journal"),
        ({"quizzes": ("any",)}, (), "no journal"),
        ({"drills": ("any",)}, (), "no journal"),
        ({"records": {"runs/a": "0" * 64}}, (), "no journal"),
        ({"named": "Grace", "journal": (SimpleNamespace(what="before"),)}, (), "begun before the journal"),
        ({"named": "Grace", "journal": (SimpleNamespace(what="check"),)}, (), "whole"),
        ({}, ("$.named: found 1",), "edited"),
        ({"journal": (SimpleNamespace(what="before"),)}, ("$.named: found 1",), "edited"),
    ],
)
def test_proof_of_a_report(changes: dict[str, Any], edits: tuple[str, ...], proof: str) -> None:
    assert replace(report(**changes), edits=edits).proof == proof
