"""A rank's output, cut into lines."""

from __future__ import annotations

import random

import pytest

from frog.launch.rank_output import MOST_LINE_BYTES, PROGRESS_S, QUIET_S, LineCutter


def test_lines_are_whole_however_the_output_is_split() -> None:
    output = "one\n\ntwo ünd\r\nthree".encode()
    for size in range(1, len(output) + 1):
        cutter = LineCutter()
        found = [line for at in range(0, len(output), size) for line in cutter.feed(output[at : at + size], 0.0)]
        assert [*found, *cutter.rest()] == ["one", "", "two ünd", "three"]
        assert cutter.rest() == []


@pytest.mark.parametrize("output", ["a\rbb\rccc\n", "\ra\r\rccc\n", "aaaaa\rccc\r\n", "x\rccc\r\r\n"])
def test_overwritten_line_counts_in_its_last_state(output: str) -> None:
    for size in (1, 2, 100):
        cutter = LineCutter()
        data = output.encode()
        assert [line for at in range(0, len(data), size) for line in cutter.feed(data[at : at + size], 0.0)] == ["ccc"]


def test_incomplete_line_is_shown_once_after_a_while() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"Continue? ", 5.0) == []
    assert cutter.due(5.0 + QUIET_S / 2) == []
    assert cutter.due(5.0 + QUIET_S) == ["Continue? "]
    assert cutter.due(50.0) == []
    assert cutter.feed(b"yes\n", 51.0) == ["yes"]
    cutter.feed(b"again", 60.0)
    assert cutter.due(70.0) == ["again"]
    assert cutter.feed(b"\nnext\n", 71.0) == ["next"], "the line has been shown"


def test_progress_bar_is_shown_rarely() -> None:
    cutter = LineCutter()
    shown = []
    for tenth in range(1000):
        now = tenth / 10
        assert cutter.feed(f"\r{tenth}%".encode(), now) == []
        shown += cutter.due(now)
    assert len(shown) == 100 / PROGRESS_S - 1
    assert cutter.feed(b"\n", 100.0) == ["999%"]


def test_endless_line_is_bounded_and_says_so() -> None:
    cutter = LineCutter()
    for _ in range(32):
        assert cutter.feed(b"x" * MOST_LINE_BYTES, 0.0) == []
    (line,) = cutter.feed(b"\n", 0.0)
    assert line == "x" * MOST_LINE_BYTES + f" ... ({31 * MOST_LINE_BYTES:,} more bytes)"
    assert cutter.feed(b"short\n", 0.0) == ["short"]


def test_random_bytes_are_cut_without_errors_and_without_growth() -> None:
    random_ = random.Random(26)
    for _ in range(200):
        cutter, now = LineCutter(), 0.0
        for _ in range(20):
            now += random_.random() * 3
            lines = cutter.feed(random_.choice([random_.randbytes(50), b"\r\n", b"\r", b"\n" * 3, b"a"]), now)
            for line in (*lines, *cutter.due(now)):
                assert "\n" not in line
                line.encode()
        cutter.rest()
