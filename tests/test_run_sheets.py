"""The run sheets: each is 90 minutes without a gap, and each of its lines begins where a slide of its deck does."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"^\| (\d):(\d\d) \| (\d*) \|", re.MULTILINE)
MINUTES = re.compile(r"^(\d+) min$", re.MULTILINE)


@pytest.mark.parametrize("session", ["a", "b", "c"])
def test_a_run_sheet_is_its_deck_to_the_minute(session: str) -> None:
    lines = LINE.findall((ROOT / f"docs/teach/session-{session}.md").read_text())
    begins = [60 * int(hours) + int(minutes) for hours, minutes, _ in lines]
    lasts = [int(minutes or 0) for *_, minutes in lines]
    assert begins == [0, *accumulate(lasts)][:-1]
    assert sum(lasts) == 90
    slides = [0, *accumulate(map(int, MINUTES.findall((ROOT / f"slides/session-{session}.md").read_text())))]
    assert set(begins) <= set(slides)
