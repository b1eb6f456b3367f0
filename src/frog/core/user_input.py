"""Checks of what users type: numbers within limits, names of runs and data sets, and "did you mean"?"""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

_MOST_DIGITS = 1000

LAST_PORT = 65_535


def integer(text: str) -> int:
    """Read an integer that a user types; the argument type of every option with `type=int` (frog.cli).

    A command says itself which numbers it takes. `int` fails above 4,300 digits.
    """
    try:
        return int(text if len(text) <= _MOST_DIGITS else "")
    except ValueError:
        shown = text if len(text) <= 80 else f"{text[:80]}… ({len(text)} characters)"
        raise argparse.ArgumentTypeError(f"invalid int value: {shown!r}") from None


def at_least(least: int) -> Callable[[str], int]:
    """Return an argument type for integers of at least `least`."""

    def read(text: str) -> int:
        if (value := integer(text)) < least:
            raise argparse.ArgumentTypeError(f"{text}: must be at least {least}")
        return value

    return read


def port(text: str) -> int:
    """Argument type of a TCP port to listen on: 0 takes a free one."""
    if not 0 <= (value := integer(text)) <= LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text}: must be between 0 and {LAST_PORT}")
    return value


def between(least: float, most: float) -> Callable[[str], float]:
    """Return an argument type for numbers from `least` to `most`."""

    def read(text: str) -> float:
        if not least <= (value := float(text)) <= most:
            raise argparse.ArgumentTypeError(f"{text}: must be between {_short(least)} and {_short(most)}")
        return value

    read.__name__ = "float"
    return read


def _short(number: float) -> str:
    """Format a number, with 1e9 instead of Python's 1e+09."""
    return f"{number:g}".replace("e+0", "e").replace("e-0", "e-")


class CommandOrValue(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Commands, of which the one in capitals starts with a value instead of its name: `frog plan config.json`.

    A value is a word with a dot, slash or colon, or an existing path, so that a mistyped command is still one.
    """

    def is_value(self, word: object) -> bool:
        return isinstance(word, str) and (any(mark in word for mark in "./:") or os.path.exists(word))

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if values[0] not in self.choices:
            values = [next(name for name in self.choices if name.isupper()), *values]
        super().__call__(parser, namespace, values, option_string)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def name_problem(name: str) -> str | None:
    """Return why this cannot be the name of a run or data set; None if it can.

    A valid name cannot lead outside its parent folder, and is a single word in every shell.
    """
    if _NAME.fullmatch(name):
        return None
    return (
        f"name={name[:100]!r}: use at most 100 letters, digits, '.', '_' and '-', starting with a letter or digit, "
        "since it names a folder"
    )


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word most similar to this one, or None. cutoff: from 0, any word, to 1, the same word."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `did you mean NAME?`, or, if no known word is similar, `valid: NAME, NAME, ...`."""
    names = list(known)
    near = nearest(word, names, cutoff)
    return f"did you mean {near}?" if near else f"valid: {', '.join(names)}"
