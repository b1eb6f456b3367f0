"""The reader of plain pickles."""

from __future__ import annotations

import os
import pickle
import random

import pytest

from frog.observe.diagnose.program.flight_recorder import PickleError, load_plain

PLAIN = {
    "version": "2.10",
    "entries": [{"sizes": [[4, 2], []], "group": ("0", "default_pg"), "done": True, "start": None, "ns": 2**61}],
    "other": [-1, 300, 70_000, 2**40, 1.5, "ü", (), (1,), (1, 2, 3), (1, 2, 3, 4), {1: 2}],
}


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/frog_was_here",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_read_as_pickle_reads_them(protocol: int) -> None:
    assert load_plain(pickle.dumps(PLAIN, protocol)) == PLAIN


@pytest.mark.parametrize("value", [Hostile(), {1, 2}, range(3), Exception("x")])
def test_values_of_other_classes_are_refused(value: object) -> None:
    with pytest.raises(PickleError, match="more than plain data"):
        load_plain(pickle.dumps({"entries": value}, 2))


def test_damaged_pickles_end_in_an_error_or_a_value() -> None:
    rng, data = random.Random(1), pickle.dumps(PLAIN, 4)
    for _ in range(3000):
        spoiled = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
        try:
            load_plain(bytes(spoiled[: rng.randint(1, len(spoiled))]))
        except PickleError:
            continue


def test_large_lengths_and_indexes_allocate_nothing() -> None:
    for data in (
        b"\x80\x04\x96" + b"\xff" * 8,
        b"\x80\x04N r\xff\xff\xff\xff.",
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0f",
    ):
        with pytest.raises(PickleError):
            load_plain(data)
