"""Format verdicts and hints for learners."""

from __future__ import annotations

from collections.abc import Iterator

from frog.core.terminal import printable, wrapped
from frog.learn.grader.exercise import Exercise, Prediction
from frog.learn.grader.verdict import Verdict
from frog.learn.predictions import explained, missing
from frog.learn.progress import Progress, Work
from frog.learn.text import Style

_MARKS = {"passed": "✓", "rejected": "✗", "unsolved": "·", "broken": "!"}
_WORDS = {
    "passed": "passed",
    "rejected": "not passed",
    "unsolved": "not solved yet",
    "broken": "the check itself failed",
}
_COLOURS = {"passed": "good", "rejected": "bad", "unsolved": "strong", "broken": "bad"}
_MOST_OUTPUT = 8
"""Maximum number of lines shown of the output of the learner's code."""


def verdict_lines(verdict: Verdict, exercise: Exercise, progress: Progress, style: Style) -> list[str]:
    """Format a verdict: observation and location, misconception and question, drawing, next steps."""
    body = {"passed": _passed, "rejected": _rejected, "unsolved": _unsolved, "broken": _broken}[verdict.status]
    return [_head(verdict, exercise, style), *body(verdict, exercise, progress, style), *_output(verdict, style)]


def _head(verdict: Verdict, exercise: Exercise, style: Style) -> str:
    begin, end = f"{_MARKS[verdict.status]} lab {exercise.number}  ", f": {_WORDS[verdict.status]}"
    title = style.cut(exercise.manifest.title, style.columns - len(begin) - len(end))
    return style.paint(style.spread(begin + title + end, _ran(verdict)), "strong", _COLOURS[verdict.status])


def _ran(verdict: Verdict) -> str:
    """Return text such as `world 2 and 4, 1.4 s`."""
    sizes = [str(size) for size in sorted(set(verdict.worlds))]
    if len(sizes) > 1:
        sizes = [", ".join(sizes[:-1]), sizes[-1]]
    worlds = f"world {' and '.join(sizes)}, " if sizes else ""
    return f"{worlds}{verdict.seconds:.1f} s"


def _passed(verdict: Verdict, exercise: Exercise, progress: Progress, style: Style) -> Iterator[str]:
    if unknown := missing(exercise, progress):
        yield from _to_predict(unknown, exercise, style)
    else:
        rows = [(measured.what, measured.value) for measured in verdict.measured]
        yield from _table([*rows, *_predictions(verdict, exercise, progress)], style)
        for note in verdict.notes:
            yield from style.wrap(note)
    yield from style.wrap(f"seed {verdict.seed}; solutions: frog learn solution {exercise.number}")


def _to_predict(unknown: list[Prediction], exercise: Exercise, style: Style) -> Iterator[str]:
    """Ask for the missing predictions and show no measurement yet: one number often gives another away."""
    yield from style.wrap(f"Predict first; frog learn check {exercise.number} then shows the measured numbers.")
    for asked in unknown:
        yield f"  frog learn predict {asked.id} VALUE"
        yield from style.wrap(asked.question, indent=4)


def _table(rows: list[tuple[str, str]], style: Style) -> Iterator[str]:
    """Format names and values in two columns; a long name gets a line of its own."""
    most = style.columns // 2
    width = max((len(what) for what, _ in rows if len(what) <= most), default=0)
    for what, value in rows:
        if len(what) <= most:
            yield from style.wrap(value, first=f"{what:<{width}}  ")
        else:
            yield from style.wrap(f"{what}: {value}")


def _predictions(verdict: Verdict, exercise: Exercise, progress: Progress) -> Iterator[tuple[str, str]]:
    for asked in exercise.manifest.predict:
        if guess := progress.last_guess(exercise.id, asked.id):
            measured = verdict.predicted.get(asked.id)
            unknown = f"predicted {guess.text}, not measured by this check"
            yield asked.id, unknown if measured is None else explained(guess, measured, asked)


def _rejected(verdict: Verdict, exercise: Exercise, progress: Progress, style: Style) -> Iterator[str]:
    yield ""
    yield from style.wrap(verdict.observed or "The result differs from what the exercise asks for.")
    if verdict.where:
        yield f"  at exercises/{exercise.id}/{verdict.where}"
    if verdict.belief or verdict.question:
        yield ""
    if verdict.belief:
        yield from style.wrap(f"A misconception behind this result: {verdict.belief}")
    if verdict.question:
        yield from style.wrap(verdict.question)
    if verdict.drawing:
        yield ""
        for line in verdict.drawing.splitlines():
            yield from wrapped(f"  {line}", style.columns, hang=8)
    yield ""
    yield from _pointers(verdict, exercise, progress)


def _pointers(verdict: Verdict, exercise: Exercise, progress: Progress) -> Iterator[str]:
    yield f"  hint   frog learn hint ({progress.work(exercise.id).hints} of 3 taken)"
    if exercise.manifest.read:
        yield f"  read   {exercise.manifest.read}"
    yield f"  again  frog learn check {exercise.number} --seed {verdict.seed}"


def _unsolved(verdict: Verdict, exercise: Exercise, progress: Progress, style: Style) -> Iterator[str]:
    folder = f"exercises/{exercise.id}"
    yield from style.wrap(f"You will be able to {exercise.manifest.able}.")
    if verdict.observed:
        yield from style.wrap(verdict.observed)
    yield f"  read   {folder}/README.md"
    yield from style.wrap(", ".join(f"{folder}/{name}" for name in exercise.manifest.files), first="edit   ")
    for asked in missing(exercise, progress):
        yield f"  first  frog learn predict {asked.id} VALUE"


def short_lines(verdict: Verdict, exercise: Exercise, progress: Progress, style: Style) -> list[str]:
    """Format an unsolved exercise's verdict for a screen that already shows the exercise's text."""
    predict = ["  press p to predict a number first"] if missing(exercise, progress) else []
    observed = style.wrap(verdict.observed) if verdict.observed else []
    return [_head(verdict, exercise, style), *observed, *predict, *_output(verdict, style)]


def _broken(verdict: Verdict, exercise: Exercise, progress: Progress, style: Style) -> Iterator[str]:
    yield from style.wrap("This says nothing about your code and is not recorded.")
    yield from style.wrap(verdict.observed or "")
    yield f"  again  frog learn check {exercise.number} --seed {verdict.seed}"


def _output(verdict: Verdict, style: Style) -> Iterator[str]:
    lines = verdict.output.rstrip().splitlines()
    if lines:
        yield ""
        yield style.paint("  Your code printed:", "quiet")
        yield from (f"  | {printable(line.expandtabs(4))[: style.columns - 4]}" for line in lines[:_MOST_OUTPUT])
    if len(lines) > _MOST_OUTPUT:
        yield f"  | ... {len(lines) - _MOST_OUTPUT} more lines"


def hint_lines(exercise: Exercise, work: Work, style: Style) -> list[str]:
    """Format the question about the last rejected check, if a misconception explains it, and the hints taken so far."""
    lines = [
        line
        for number, text in enumerate(exercise.manifest.hints[: work.hints], 1)
        for line in style.wrap(text, indent=0, first=f"hint {number} of 3: ")
    ]
    last = max(work.rejected, key=lambda id: work.rejected[id].last, default=None)
    known = exercise.misconception(last) if last is not None and work.passed is None else None
    return [*style.wrap(known.question, indent=0, first="your last check: "), *lines] if known else lines
