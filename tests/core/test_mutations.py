"""The helper that writes wrong files detects readers that trust their input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mutations import held_to_its_schema, mutations

from frog.core.errors import RunError
from frog.core.schema import Typed, read_bounded, read_typed


class Point(Typed):
    x: int
    name: str = ""


def _trusting(path: Path) -> Any:
    return json.loads(read_bounded(path))["x"]


def _silent(path: Path) -> Any:
    try:
        return read_typed(path, Point)
    except RunError:
        raise RunError("something is wrong") from None


def test_reader_with_a_schema_passes_and_the_file_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "point.json"
    path.write_text('{"x": 1, "name": "a"}')
    held_to_its_schema(path, lambda: read_typed(path, Point))
    assert path.read_text() == '{"x": 1, "name": "a"}'


@pytest.mark.parametrize(("reader", "said"), [(_trusting, r"\$\.x gone: KeyError"), (_silent, "does not name point")])
def test_reader_that_trusts_its_input_or_names_no_file_fails(tmp_path: Path, reader: Any, said: str) -> None:
    path = tmp_path / "point.json"
    path.write_text('{"x": 1}')
    with pytest.raises(AssertionError, match=said):
        held_to_its_schema(path, lambda: reader(path))


def test_every_key_and_item_is_mutated() -> None:
    said = [what for what, _ in mutations({"a": [1, {"b": "c"}]})]
    assert {"$.a gone", "$.a[0] gone", "$.a[1].b gone", "$.a[1].b = None", "$.a[0] = nan", "$ = []"} <= set(said)
