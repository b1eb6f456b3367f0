"""Types of command-line arguments, for argparse: numbers within limits."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any


def at_least(least: int) -> Callable[[str], int]:
    """Return an argument type for integers of at least `least`."""

    def read(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{text}: must be at least {least}")
        return value

    read.__name__ = "int"  # argparse reports `invalid int value: 'x'`
    return read


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
