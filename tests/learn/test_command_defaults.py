"""What the commands of the course do without options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frog.cli import _parser


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("learn dev check", {"times": 1, "only": "", "workers": 2}),
        ("quiz", {"count": 9, "lab": None, "seed": None}),
        ("drill", {"nproc": 4, "seed": None}),
        ("doctor", {"deadline": 30.0, "json": False}),
        ("demo a", {"first": 1, "auto": False}),
        ("class x", {"out": Path("class.html"), "csv": None}),
        ("explain barrier", {"nproc": None, "nodes": None}),
    ],
)
def test_option_that_is_not_given_has_its_default(words: str, values: dict[str, Any]) -> None:
    arguments = vars(_parser(words.split()[0]).parse_args(words.split()))
    assert {name: arguments[name] for name in values} == values
