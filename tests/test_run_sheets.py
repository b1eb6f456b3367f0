"""The run sheets' minutes match their sources: the decks' notes, the demos' steps, the labs' tables."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path

import pytest

from frog.learn.demo.demo_session import NAMES, Name, read_session
from frog.learn.rules import table_rows as rows

ROOT = Path(__file__).parents[1]
NOTE = re.compile(r"<!--\n(\d+) min\n")
SESSION, CONTENT, LEAST_PAUSE = 90, 80, 5
PAUSES = ["break", "slack"]


def sheet(name: str) -> str:
    return (ROOT / f"docs/teach/session-{name}.md").read_text()


def plan(name: str) -> list[tuple[int, int, str]]:
    """Return a session's plan: start minute, duration, activity."""
    found = [row for row in rows(sheet(name)) if re.fullmatch(r"\d:\d\d", row[0])]
    return [(60 * int(row[0][0]) + int(row[0][2:]), int(row[1] or 0), row[2].strip("*")) for row in found]


def lab(name: str) -> list[tuple[int, int, str]]:
    """Return the plan of a session's lab: start minute, duration, activity."""
    _, _, text = sheet(name).partition("\n## The lab, ")
    found = [row for row in rows(text.partition("\n## ")[0]) if row[0].isdecimal()]
    return [(int(row[0]), int(row[1]), row[2]) for row in found]


def slides(name: str) -> list[tuple[str, int]]:
    """Return each slide's text and the minutes in its note."""
    _, _, body = (ROOT / f"tools/slides/session-{name}.md").read_text().partition("\n---\n")
    return [(text, int(note[1]) if (note := NOTE.search(text)) else 0) for text in body.split("\n---\n")]


def begins(minutes: list[int]) -> list[int]:
    return [0, *accumulate(minutes)][:-1]


@pytest.mark.parametrize("name", NAMES)
def test_session_minutes_add_up_with_break_and_slack(name: Name) -> None:
    lines = plan(name)
    assert [begin for begin, *_ in lines] == begins([minutes for _, minutes, _ in lines])
    assert sum(minutes for _, minutes, _ in lines) == SESSION
    assert [what for *_, what in lines if what in PAUSES] == PAUSES
    pauses = [minutes for _, minutes, what in lines if what in PAUSES]
    assert min(pauses) >= LEAST_PAUSE
    assert SESSION - sum(pauses) == CONTENT


@pytest.mark.parametrize("name", NAMES)
def test_each_run_sheet_line_begins_with_a_slide(name: Name) -> None:
    deck = [minutes for _, minutes in slides(name)]
    lines = [minutes for _, minutes, what in plan(name) if what not in PAUSES]
    assert sum(deck) == CONTENT
    assert set(begins(lines)) <= set(begins(deck)) | {CONTENT}


@pytest.mark.parametrize("name", NAMES)
def test_demo_and_lab_minutes_match_their_slides(name: Name) -> None:
    length = {what: minutes for _, minutes, what in plan(name)}
    demo = [minutes for text, minutes in slides(name) if f"$ make session-{name}" in text]
    assert demo == [length["demo"]] == [read_session(name).minutes]
    lab_minutes = sum(minutes for _, minutes, _ in lab(name))
    assert length[f"lab {NAMES.index(name) + 1}"] == lab_minutes
    assert [minutes for text, minutes in slides(name) if "\n## Now you" in text] == [lab_minutes]
    assert f"## The lab, {lab_minutes} minutes" in sheet(name)


@pytest.mark.parametrize("name", NAMES)
def test_session_lab_minutes_add_up(name: Name) -> None:
    """The rules of `frog learn dev check` compare them with the exercises' minutes."""
    lines = lab(name)
    assert [begin for begin, *_ in lines] == begins([minutes for _, minutes, _ in lines])


@pytest.mark.parametrize("name", NAMES)
def test_lab_stop_minute_is_consistent(name: Name) -> None:
    stops = [begin for begin, _, what in lab(name) if what.startswith("everybody stops")]
    first = next(begin for begin, _, what in plan(name) if what.startswith("lab "))
    said = re.findall(r"; at (\d):(\d\d) everybody stops", sheet(name))
    noted = [minute for text, _ in slides(name) for minute in re.findall(r"^At minute (\d+)", text, re.MULTILINE)]
    assert stops == [60 * int(hour) + int(minute) - first for hour, minute in said] == list(map(int, noted))


@pytest.mark.parametrize("name", NAMES)
def test_assessment_questions_are_identical_everywhere(name: Name) -> None:
    asked = [
        re.findall(r"^\d\. (.*)$", text, re.MULTILINE)
        for text, _ in slides(name)
        if re.search(r"^## (Two questions now|The same two questions)", text, re.MULTILINE)
    ]
    (row,) = [row for row in rows((ROOT / "docs/teach/class.md").read_text()) if row[0] == name.upper()]
    assert asked == [row[1:3], row[1:3]]
