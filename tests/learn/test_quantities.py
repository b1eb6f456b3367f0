"""Numbers with units: parsing, formatting, and errors of predictions."""

from __future__ import annotations

import pytest

from frog.core.errors import UsageError
from frog.learn.predictions import compared
from frog.learn.progress import Guess
from frog.learn.progress_page import HEIGHT, _grid, _times, height_of
from frog.learn.quantity import format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("5.3MB", "B", 5.3e6),
        ("5.3 MB", "B", 5.3e6),
        ("2 MiB", "B", 2 * 2**20),
        ("3kB", "B", 3e3),
        ("1GiB", "B", 2**30),
        ("1 GB", "B", 1e9),
        ("3,985,152", "B", 3985152),
        ("3_985_152", "B", 3985152),
        ("1e6", "B", 1e6),
        ("12ms", "s", 0.012),
        ("15us", "s", 15e-6),
        ("3", "s", 3),
        ("33%", "%", 33),
        ("12 steps", "steps", 12),
        ("4", "ranks", 4),
        ("-0.5", "", -0.5),
        (".5", "", 0.5),
    ],
)
def test_quantities_are_parsed(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("unit", "sizes"),
    [
        ("B", {"B": 1, "byte": 1, "bytes": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}),
        ("B", {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}),
        ("s", {"s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60, "h": 3600}),
        *[("%", {"%": 1}), ("steps", {"steps": 1, "step": 1}), ("ranks", {"ranks": 1, "rank": 1})],
    ],
)
def test_every_unit_has_its_size(unit: str, sizes: dict[str, float]) -> None:
    assert {name: parse_quantity(f"3 {name}", unit) / 3 for name in sizes} == pytest.approx(sizes, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit", "told"),
    [
        *[(f"5 {name}", "B", True) for name in ("b", "Mb", "Kib", "bit", "bits", "kbit", "Gibits")],
        *[(f"5 {name}", "B", False) for name in ("s", "MBs", "Pb", "bitss")],
        ("5 bit", "s", False),
        ("5 MB", "s", False),
        ("5 Mb", "", False),
    ],
)
def test_bits_are_told_from_bytes(text: str, unit: str, told: bool) -> None:
    with pytest.raises(UsageError) as refused:
        parse_quantity(text, unit)
    assert f"{text}: found the unit {text[2:]}, expected {unit or 'none'}" in str(refused.value)
    assert ("; a byte has 8 bits" in str(refused.value)) == told


@pytest.mark.parametrize(
    "text",
    ["", "many", ".", "1e999", "nan", "1,2", "1.2.3", "3 4", "5 MBs", "5 s", "5Mb", "8 bit", "1e300TB", "1" * 81],
)
def test_invalid_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"try: a number, such as 5312, 5\.3MB or 5MiB"):
        parse_quantity(text, "B")


def test_bits_are_refused_as_bytes() -> None:
    with pytest.raises(UsageError, match="a byte has 8 bits"):
        parse_quantity("32 Mbit", "B")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3985152, "B", "3.99 MB"),
        (12, "B", "12 B"),
        (0.0123, "s", "12.3 ms"),
        (3, "s", "3 s"),
        (1.5e-5, "s", "15 us"),
        (33.333, "%", "33.3 %"),
        (12, "steps", "12 steps"),
        (2656768, "", "2656768"),
        (0.25, "", "0.25"),
        (0, "B", "0 B"),
        (123456.7, "", "123457"),
        (12345678.4, "", "1.23e+07"),
    ],
)
def test_quantities_are_formatted(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


@pytest.mark.parametrize(
    ("value", "measured", "off"),
    [
        (100.0, 100.0, "exactly"),
        (102.0, 100.0, "2 % off, close enough"),
        (133.0, 100.0, "33 % off"),
        (800.0, 100.0, "8 times the measured value"),
        (10.0, 100.0, "90 % off"),
        (-100.0, 100.0, "200 % off"),
        (3.0, 0.0, "off"),
    ],
)
def test_error_of_a_prediction_is_described(value: float, measured: float, off: str) -> None:
    guess = Guess(exercise="lab1/01_a", id="a", value=value, unit="", text=f"{value}", at="")
    assert compared(guess, measured, 0.05).endswith(f"({off})")


@pytest.mark.parametrize(
    ("text", "unit", "measured", "said"),
    [
        ("100000", "B", 100_034, "predicted 100 kB, measured 100.03 kB (0.034 % off, close enough)"),
        ("0.1MB", "B", 100_034, "predicted 0.1MB, measured 100.03 kB (0.034 % off, close enough)"),
        ("3985152", "B", 3_985_152, "predicted 3.985152 MB, measured 3.985152 MB (exactly)"),
        ("1.536", "", 3.0 * 0.8 * 0.8 * 0.8, "predicted 1.536, measured 1.536 (exactly)"),
        ("1.536", "", 1.5362, "predicted 1.536, measured 1.5362 (0.013 % off, close enough)"),
        ("1.536", "", 2.4, "predicted 1.536, measured 2.4 (36 % off)"),
        ("12", "steps", 16, "predicted 12 steps, measured 16 steps (25 % off)"),
    ],
)
def test_different_prediction_and_measurement_print_differently(
    text: str, unit: str, measured: float, said: str
) -> None:
    value = parse_quantity(text, unit)
    guess = Guess(exercise="lab1/01_a", id="a", value=value, unit=unit, text=text, at="")
    assert compared(guess, measured, 0.05) == said


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0.0, "0"), (7.0, "7"), (1234567.0, "1234567"), (9_999_999.0, "9999999"), (10_000_000.0, "1e+07")],
        *[(12_345_678.0, "1.23e+07"), (1234.56, "1235"), (12.345, "12.3")],
        *[(0.00012345, "0.000123"), (-3.14159, "-3.14")],
        *[(9_999_999.5, "9999999.5"), (99.96, "100")],
    ],
)
def test_plain_number_has_three_digits_or_all_before_the_point(value: float, text: str) -> None:
    assert format_quantity(value, "") == text


@pytest.mark.parametrize(
    ("value", "measured", "times"),
    [
        (3.0, 3.0, 1.0),
        (0.0, 0.0, 1.0),
        (0.0, None, 1.0),
        (6.0, 3.0, 2.0),
        (-6.0, -3.0, 2.0),
        (5.0, 0.0, 16),
        (-5.0, 0.0, 1 / 16),
        (0.0, 3.0, 1 / 16),
        (4.0, -1.0, 16),
        (-4.0, 1.0, 1 / 16),
        (0.0, -2.0, 16),
    ],
)
def test_ratio_without_a_value_is_at_the_edge_of_the_chart(value: float, measured: float | None, times: float) -> None:
    guess = Guess(exercise="lab1/01_a", id="a", value=value, unit="", text="", at="", measured=measured)
    assert _times(guess) == times


def test_lines_of_the_chart_are_named_after_their_factors() -> None:
    assert [line["label"] for line in _grid()] == [
        *["16 times too little", "4 times too little", "2 times too little", "right"],
        *["2 times too much", "4 times too much", "16 times too much"],
    ]
    heights = [line["y"] for line in _grid()]
    assert heights == sorted(heights, reverse=True)


def test_chart_scale_is_symmetric_for_factors() -> None:
    middle = height_of(1)
    assert middle - height_of(2) == pytest.approx(height_of(0.5) - middle, abs=0.11)
    assert 0 < height_of(1e9) < middle < height_of(1e-9) < HEIGHT
