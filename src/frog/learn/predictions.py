"""Predictions: the numbers that an exercise asks for, the learner's guesses, and how far off each one is."""

from __future__ import annotations

from dataclasses import dataclass

from frog.core.errors import UsageError
from frog.core.units import time_text
from frog.learn.grader.exercise import Exercise, Prediction
from frog.learn.progress import Guess, Progress
from frog.learn.quantity import format_distinct, format_quantity, parse_quantity, relative_error


@dataclass(frozen=True)
class Asked:
    """A prediction that an exercise asks for."""

    exercise: Exercise
    prediction: Prediction

    def guess(self, text: str) -> Guess:
        """Parse a learner's input as a prediction. Raises UsageError if it is not a number in a suitable unit."""
        return Guess(
            exercise=self.exercise.id,
            id=self.prediction.id,
            value=parse_quantity(text, self.prediction.unit),
            unit=self.prediction.unit,
            text=text.strip(),
            at=time_text(),
        )

    def lines(self, progress: Progress) -> list[str]:
        """Return the question and its state: not predicted, predicted or measured."""
        guess = progress.last_guess(self.exercise.id, self.prediction.id)
        unit = f" (in {self.prediction.unit})" if self.prediction.unit else ""
        return [
            f"{self.exercise.number}  {self.prediction.id}: {self.prediction.question}{unit}",
            f"     {_state(self, guess)}",
        ]


def _state(asked: Asked, guess: Guess | None) -> str:
    if guess is None:
        return f"not predicted yet: frog learn predict {asked.prediction.id} VALUE"
    if guess.measured is None:
        typed = _as_typed(guess, format_quantity(guess.value, guess.unit))
        return f"predicted {typed}; the next passing check measures it"
    return explained(guess, guess.measured, asked.prediction)


def asked_by(exercise: Exercise) -> list[Asked]:
    return [Asked(exercise, prediction) for prediction in exercise.manifest.predict]


def find_prediction(name: str, here: Exercise, exercises: list[Exercise]) -> Asked:
    """Return the prediction with this id: from the learner's current exercise, else from any other that asks for it.

    Raises:  UsageError if no exercise, or several other exercises, ask for it.
    """
    matching = [asked for asked in asked_by(here) if asked.prediction.id == name]
    matching = matching or [asked for other in exercises for asked in asked_by(other) if asked.prediction.id == name]
    if len(matching) == 1:
        return matching[0]
    if matching:
        where = ", ".join(asked.exercise.number for asked in matching)
        raise UsageError(
            f"{name}: exercises {where} ask for it", f"cd exercises/{matching[0].exercise.id} and run the command there"
        )
    ids = ", ".join(asked.prediction.id for asked in asked_by(here))
    raise UsageError(
        f"{name}: no exercise asks for a prediction with this name",
        f"{here.number} asks for {ids}" if ids else f"{here.number}, the current exercise, asks for none",
    )


def missing(exercise: Exercise, progress: Progress) -> list[Prediction]:
    """Return the predictions that an exercise asks for and the learner never made."""
    return [p for p in exercise.manifest.predict if progress.last_guess(exercise.id, p.id) is None]


def explained(guess: Guess, measured: float, asked: Prediction) -> str:
    """Describe the guess and the measurement; for a wrong guess, add the misconception that leads to it."""
    said = compared(guess, measured, asked.tolerance)
    if is_near_enough(guess.value, measured, asked.tolerance):
        return said
    near = [
        wrong.belief for wrong in asked.beliefs if is_near_enough(guess.value, wrong.number(measured), wrong.tolerance)
    ]
    return ". A possible misconception behind it: ".join([said, *near])


def is_near_enough(guess: float, number: float, tolerance: float) -> bool:
    """Return True if a guess is within a relative tolerance of a number."""
    error = relative_error(guess, number)
    return error is not None and error <= tolerance


def compared(guess: Guess, measured: float, tolerance: float) -> str:
    """Return text such as `predicted 5.3 MB, measured 3.99 MB (33 % off)`."""
    off = _off(guess.value, measured, tolerance)
    predicted, measured_text = format_distinct(guess.value, measured, guess.unit)
    return f"predicted {_as_typed(guess, predicted)}, measured {measured_text} ({off})"


def _as_typed(guess: Guess, formatted: str) -> str:
    """Return the guess as typed, or formatted if the learner omitted the unit."""
    lacks_unit = guess.unit and guess.text[-1:].isdigit()
    return formatted if lacks_unit else guess.text


def _off(guess: float, measured: float, tolerance: float) -> str:
    error = relative_error(guess, measured)
    if error is None:
        return "off"
    if error == 0:
        return "exactly"
    if error >= 1 and guess / measured > 0:
        return f"{guess / measured:.3g} times the measured value"
    off = f"{error * 100:.2g} % off" if error < 0.1 else f"{error * 100:.0f} % off"
    return f"{off}, close enough" if error <= tolerance else off
