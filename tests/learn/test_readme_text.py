"""An exercise's README.md in `frog learn watch`."""

from __future__ import annotations

import re
from difflib import ndiff

from frog.learn.grader.exercise import Exercise, find_exercises
from frog.learn.readme import readme_lines
from frog.learn.text import Style

PAGE = """\
# Lab 9.1: the title

**You will be able to** read *this*, and
[a page](../page.md) with `**kwargs`, 2 * 3 and 4 * 5.

```console
$ frog learn predict a-number 1
    indented
```

    weights = [1,
        2]

| file | what it does |
|---|---|
| `a.py` | sends |

- one item that is long enough to be wrapped
- two
## More
"""


def test_readme_loses_markdown_marks_and_keeps_code() -> None:
    assert readme_lines(PAGE, Style(40)) == [
        "You will be able to read this, and a",
        "page with `**kwargs`, 2 * 3 and 4 * 5.",
        "",
        "  $ frog learn predict a-number 1",
        "      indented",
        "",
        "  weights = [1,",
        "      2]",
        "",
        "  file  |  what it does",
        "  `a.py`  |  sends",
        "",
        "- one item that is long enough to be",
        "  wrapped",
        "- two",
        "More",
    ]


def test_bold_beginning_of_a_paragraph_is_highlighted() -> None:
    assert readme_lines("**Do.** Fill in `f`.", Style(40, colour=True)) == ["\x1b[1mDo.\x1b[0m Fill in `f`."]


def lost_words(exercise: Exercise) -> list[str]:
    """Return the differences between the words of a README and those that a terminal shows."""
    body = exercise.readme.partition("\n")[2]
    body = re.sub(r"^```.*$|^\|[-|:]+$|\]\([^)]*\)", "", body, flags=re.MULTILINE)
    shown = re.findall(r"\w+", " ".join(readme_lines(exercise.readme, Style(80))))
    return [line for line in ndiff(re.findall(r"\w+", body), shown) if line[0] in "+-"]


def test_every_exercise_readme_fits_80_columns_and_keeps_its_words() -> None:
    exercises = find_exercises()
    assert len(exercises) > 70
    wide = {one.number: [line for line in readme_lines(one.readme, Style(80)) if len(line) > 80] for one in exercises}
    assert {number: lines for number, lines in wide.items() if lines} == {}
    lost = {one.number: lost_words(one) for one in exercises}
    assert {number: words for number, words in lost.items() if words} == {}
