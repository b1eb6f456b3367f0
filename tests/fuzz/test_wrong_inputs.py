"""Wrong inputs for every reader of files: the same in every run, or those of FUZZ_SEED.

`benchmarks/fuzz.py` tries as many as one likes, and those that take a process each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cases import Finding, run_cases
from material import make_material
from promises import MOST_OUTPUT, check_output

CASES = 2000
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "material"
    make_material(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_promises_are_kept_whatever_comes_in(material: Path, tmp_path: Path) -> None:
    broken: list[Finding] = list(run_cases(material, tmp_path, SEED, range(CASES)))
    assert not broken, f"{len(broken)} promises broken:\n" + "\n".join(map(str, broken[:10]))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x" * (MOST_OUTPUT + 1), "bytes of output"),
        (b"a \x1b[2J", "raw"),
        ("a \x9b2J".encode(), "raw"),
        ("a \u202e".encode(), "raw"),
        (b"\xff", "raw"),
        (b"a\rb", "raw"),
        (b"Traceback (most recent call last):\n", "a traceback"),
    ],
)
def test_what_is_wrong_with_output(data: bytes, said: str) -> None:
    assert said in (check_output(data) or "")
    assert check_output("frog ✓\n\tgood".encode()) is None
