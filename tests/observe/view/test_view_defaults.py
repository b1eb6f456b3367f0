"""What the commands that show runs do without options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frog.cli import _parser


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("runs", {"runs": Path("runs")}),
        ("compare a b", {"rtol": 1e-5}),
        ("logs a", {"rank": [], "node": []}),
        ("check -- my.py", {"every": 1, "run": None, "json": False}),
        ("report a", {"open": False}),
    ],
)
def test_option_that_is_not_given_has_its_default(words: str, values: dict[str, Any]) -> None:
    arguments = vars(_parser(words.split()[0]).parse_args(words.split()))
    assert {name: arguments[name] for name in values} == values
