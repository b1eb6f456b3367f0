"""Terminal text of `frog learn`: widths, bars, cut titles, pages without marks, and charts of ranks' times."""

from __future__ import annotations

import pytest

from frog.learn.explain.chart import Bar, chart, waits
from frog.learn.readme import readme_lines
from frog.learn.text import Style, style_of_output

STYLE = Style(columns=20)


@pytest.mark.parametrize(
    ("text", "room", "cut"), [("abcdef", 6, "abcdef"), ("abcdef", 5, "ab..."), ("abcdef", 9, "abcdef")]
)
def test_long_text_ends_in_three_dots(text: str, room: int, cut: str) -> None:
    assert Style.cut(text, room) == cut


@pytest.mark.parametrize(
    ("left", "right", "line"),
    [
        ("abc", "xyz", "abc              xyz"),
        ("a" * 15, "xyz", "a" * 15 + "  xyz"),
        ("a" * 16, "xyz", "a" * 16),
        ("abc", "", "abc"),
    ],
)
def test_two_texts_are_at_the_ends_of_a_line_if_they_fit(left: str, right: str, line: str) -> None:
    assert STYLE.spread(left, right) == line


@pytest.mark.parametrize(
    ("done", "of", "bar"),
    [
        (0, 4, "[--------] 0/4"),
        (1, 4, "[##------] 1/4"),
        (3, 8, "[###-----] 3/8"),
        (1, 9, "[--------] 1/9"),
        (4, 4, "[########] 4/4"),
        (0, 0, "[--------] 0/0"),
    ],
)
def test_bar_is_full_when_all_is_done(done: int, of: int, bar: str) -> None:
    assert STYLE.bar(done, of, 8) == bar
    assert len(STYLE.bar(done, of)) == len("[] 0/0") + 20


def test_colour_is_added_only_where_it_is_shown() -> None:
    assert STYLE.paint("a", "good") == "a"
    painted = Style(colour=True)
    assert (painted.paint("a", "good", "strong"), painted.paint("", "good")) == ("\x1b[32;1ma\x1b[0m", "")
    assert [painted.paint("a", name)[2:-6] for name in ("bad", "quiet")] == ["31", "2"]


def test_paragraphs_are_wrapped_below_their_beginning() -> None:
    assert STYLE.wrap("one two three four five") == ["  one two three four", "  five"]
    assert STYLE.wrap("one two three\nfour", indent=0, first="- ") == ["- one two three", "  four"]
    assert STYLE.wrap("one two three four", indent=1, first="ab ") == [" ab one two three", "    four"]
    assert STYLE.wrap("a-b-c-d e-f-g-h-i-j-k") == ["  a-b-c-d", "  e-f-g-h-i-j-k"]
    assert STYLE.wrap("a\tb\x07") == ["  a   b\\x07"]
    assert STYLE.wrap("") == []


def test_text_is_80_columns_wide_and_plain_unless_told() -> None:
    assert Style() == Style(columns=80, colour=False)


@pytest.mark.parametrize(("columns", "width"), [(20, 40), (40, 40), (77, 77), (100, 100), (300, 100)])
def test_output_is_40_to_100_columns_wide(monkeypatch: pytest.MonkeyPatch, columns: int, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert style_of_output() == Style(width, colour=False)


PAGE = """\
# The title
Some *emphasis*, **bold**, [a link](x.md) and `*code*` of 2*3*4.
It goes on.

## A heading

- first item
- second
1. numbered

| a | b |
|---|:-:|
| 1 | `x|` |

    indented  code
```
fenced   code
    # more

```
after
    no code here


end
"""


def test_page_is_shown_without_its_marks() -> None:
    assert readme_lines(PAGE, Style(columns=60)) == [
        "Some emphasis, bold, a link and `*code*` of 2*3*4. It goes",
        "on.",
        "",
        "A heading",
        "",
        "- first item",
        "- second",
        "1. numbered",
        "",
        "  a  |  b",
        "  1  |  `x  |  `",
        "",
        "  indented  code",
        "  fenced   code",
        "      # more",
        "  ",
        "after no code here",
        "",
        "end",
    ]
    assert readme_lines("", STYLE) == readme_lines("# only\n\n", STYLE) == []


def test_bold_beginning_is_highlighted_if_it_fits() -> None:
    style = Style(columns=20, colour=True)
    assert readme_lines("**Lead.** text", style) == ["\x1b[1mLead.\x1b[0m text"]
    assert readme_lines("a **Lead.** text", style) == ["a Lead. text"]
    assert readme_lines("**A lead that is too long** x", style) == ["A lead that is too", "long x"]
    assert readme_lines("## Head", style) == ["\x1b[1mHead\x1b[0m"]


def test_chart_has_56_columns_for_the_whole_time() -> None:
    second = 10**9
    bars = [
        Bar("rank 0", [("#", 0, 28 * second), (".", 28 * second, 56 * second)], "waited"),
        Bar("rank 10", [("#", 14 * second, 56 * second)], ""),
    ]
    assert chart(bars).split("\n") == [
        "rank 0   " + "#" * 28 + "." * 28 + "  waited",
        "rank 10  " + " " * 14 + "#" * 42,
        " " * 9 + "0" + "56.0 s".rjust(55),
    ]
    assert chart([Bar("a", [("#", 5, 5)], "x")]).split("\n")[0] == "a  " + " " * 56 + "  x"


def test_table_of_waits_has_a_dash_where_nobody_was_waited_for() -> None:
    assert waits([1_000_000, 0, 1_000_000]).split("\n") == [
        "waited for  rank 0  rank 1  rank 2",
        "    rank 0       -       -       -",
        "    rank 1  1.0 ms       -  1.0 ms",
        "    rank 2       -       -       -",
    ]
