"""Numbers and rows of a report: significant digits, and one row for ranks that agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from contrast import contrast, rgb

import frog.observe.view
from frog.observe.view.numbers import format_number, format_percent, format_ranks, format_ratio, together


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0.0, "0 %"),
        (8.6e-6, "< 0.01 %"),
        (1e-4, "0.01 %"),
        (0.00123, "0.12 %"),
        (0.0123, "1.2 %"),
        (0.4567, "46 %"),
        (1.0, "100 %"),
    ],
)
def test_percentage_has_at_most_three_digits(fraction: float | None, text: str) -> None:
    assert format_percent(fraction) == text


def test_ratio_has_two_decimals() -> None:
    assert [format_ratio(value) for value in (1.0, 1.0004, 1.26, 12.345, 0.00123)] == [
        "1.00",
        "1.00",
        "1.26",
        "12.35",
        "0.0012",
    ]


def test_number_keeps_its_significant_digits() -> None:
    found = [format_number(value, 3) for value in (997.11, 0.0793, 1000.02, 1e-9)]
    assert found == ["997", "0.0793", "1,000", "1.00e-09"]


def test_rows_that_read_the_same_are_shown_once() -> None:
    rows = [{"rank": rank, "bytes": size} for rank, size in enumerate((7, 7, 9, 7, 9))]
    assert together(rows, lambda row: f"{row['bytes']} B") == [("0-1, 3", "7 B"), ("2, 4", "9 B")]
    assert together([], str) == []


def test_ranks_are_written_as_spans() -> None:
    assert [format_ranks(ranks) for ranks in ([3], [2, 0, 1], [0, 2, 3, 7])] == ["3", "0-2", "0, 2-3, 7"]


def test_numbers_on_every_heat_of_the_weights_table_reach_a_contrast_of_4_5() -> None:
    css = (Path(frog.observe.view.__path__[0]) / "assets/report.css").read_text()
    for scheme in (0, 1):
        ink, grid, heat = (
            rgb(re.findall(rf"--{name}: (#\w+);", css)[scheme]) for name in ("ink", "grid", "heat-color")
        )
        mixed = [[g + (h - g) * share / 100 for g, h in zip(grid, heat, strict=True)] for share in range(101)]
        assert min(contrast(ink, ground) for ground in mixed) >= 4.5
