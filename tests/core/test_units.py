"""Numbers with their units for people, and whole numbers from texts: each limit, just below, at and above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from frog.core.units import (
    count,
    format_bytes,
    format_count,
    format_seconds,
    parse_integer,
    parse_whole,
    some_of,
    span,
)

KIB = 1024


@pytest.mark.parametrize(
    ("function", "argument", "text"),
    [
        (format_bytes, 0, "0 B"),
        (format_bytes, 12, "12 B"),
        (format_bytes, 1023, "1023 B"),
        (format_bytes, KIB, "1.0 KiB"),
        (format_bytes, 1536, "1.5 KiB"),
        (format_bytes, -1536, "-1.5 KiB"),
        (format_bytes, KIB**2, "1.0 MiB"),
        (format_bytes, 3 * KIB**3, "3.0 GiB"),
        (format_bytes, KIB**4, "1.0 TiB"),
        (format_bytes, 5000 * KIB**4, "5000.0 TiB"),
        (format_count, 0, "0"),
        (format_count, 999, "999"),
        (format_count, 1000, "1.00 k"),
        (format_count, -2500, "-2.50 k"),
        (format_count, 1e6, "1.00 M"),
        (format_count, 1_234_567, "1.23 M"),
        (format_count, 1e9, "1.00 B"),
        (format_count, 1e12, "1.00 T"),
        (format_count, 123e12, "123.00 T"),
        (format_seconds, 0.012, "12 ms"),
        (format_seconds, 0.999, "999 ms"),
        (format_seconds, 1, "1.0 s"),
        (format_seconds, 5.04, "5.0 s"),
        (format_seconds, 59.9, "59.9 s"),
        (format_seconds, 60, "1 min 0 s"),
        (format_seconds, 83.4, "1 min 23 s"),
        (format_seconds, 83.6, "1 min 24 s"),
        (format_seconds, 3599, "59 min 59 s"),
        (format_seconds, 3600, "1 h 0 min"),
        (format_seconds, 7380, "2 h 3 min"),
        (format_seconds, 90_000, "25 h 0 min"),
        (span, [2], "rank 2"),
        (span, [1, 0], "ranks 0 and 1"),
        (span, [0, 1, 2], "ranks 0, 1 and 2"),
        (span, [3, 1, 2, 0], "ranks 0 to 3"),
        (span, [4, 5, 6, 7, 8], "ranks 4 to 8"),
        (span, [0, 1, 3, 4], "ranks 0, 1, 3 and 4"),
        (span, [0, 1, 2, 4], "ranks 0, 1, 2 and 4"),
    ],
)
def test_number_is_formatted_with_the_largest_unit_that_fits(
    function: Callable[[Any], str], argument: Any, text: str
) -> None:
    assert function(argument) == text


def test_counts_have_separators_and_the_plural_unless_they_are_one() -> None:
    assert [count(number, "byte") for number in (0, 1, 2, 2048)] == ["0 bytes", "1 byte", "2 bytes", "2,048 bytes"]
    assert [count(number, "batch", "batches") for number in (0, 1, 2)] == ["0 batches", "1 batch", "2 batches"]


@pytest.mark.parametrize(
    ("items", "text"),
    [([], ""), ("a", "a"), ("ab", "a, b"), ("abc", "a, b and 1 more"), ("abcde", "a, b and 3 more")],
)
def test_only_the_first_items_are_listed(items: str, text: str) -> None:
    assert some_of(items, 2) == text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("0", 0), ("12", 12), ("007", 7), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("9" * 6000, None)],
        *[("", None), ("-1", None), (" 1", None), ("1\n", None), ("1_0", None), ("1.0", None), ("٣", None)],
    ],
)
def test_whole_number_has_1_to_18_digits_and_no_sign(text: str, number: int | None) -> None:
    assert parse_whole(text) == number


def test_integer_has_64_bits_and_at_most_30_characters() -> None:
    accepted = ["12", "-3", "+3", "1_000", str(2**63 - 1), str(-(2**63)), "0" * 29 + "5"]
    assert [parse_integer(text) for text in accepted] == [12, -3, 3, 1000, 2**63 - 1, -(2**63), 5]
    for text in ("", "x", "1.5", "9" * 6000, str(2**63), str(-(2**63) - 1), "0" * 30 + "5"):
        with pytest.raises(ValueError, match=r"whole number of 64 bits|invalid literal"):
            parse_integer(text)
