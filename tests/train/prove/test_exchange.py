"""Files of cases and results with every key wrong."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from mutations import held_to_its_schema

from frog.train.prove.matrix import DEFAULT_VARIANTS, SMALL_MODEL, Cell, cells
from frog.train.prove.prove_files import read_cases, read_results
from frog.train.prove.prove_rank import Case, _finite


def test_case_files_with_wrong_values_are_rejected(tmp_path: Path) -> None:
    cell = next(one for one in cells(SMALL_MODEL, [2], ["frog"], DEFAULT_VARIANTS[:1]) if isinstance(one, Cell))
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([msgspec.structs.asdict(cell.fields(0))]))
    held_to_its_schema(path, lambda: [Case.of(fields, path) for fields in read_cases(path)])


def test_result_files_with_wrong_values_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    result = {"name": "0", "equal": False, "bitwise": False, "loss": float("inf"), "norm": 0.0, "first": "the loss"}
    path.write_text(json.dumps([_finite(result)]))
    assert read_results(path)[0].loss is None
    held_to_its_schema(path, lambda: read_results(path))
