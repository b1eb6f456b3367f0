"""An exercise's README.md in `frog learn watch`."""

from __future__ import annotations

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


def test_code_right_below_a_paragraph_follows_it_and_is_not_wrapped_into_it() -> None:
    text = "# Title\n\nRun this:\n```console\n$ frog run\n```\nThen look.\n"
    assert readme_lines(text, Style(80, False)) == ["Run this:", "  $ frog run", "Then look."]
