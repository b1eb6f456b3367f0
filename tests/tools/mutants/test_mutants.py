"""Which places of a file are mutated, and what the tests of a small project say of its mutants."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.mutants.__main__ import share, table
from tools.mutants.calls import function_at, read_calls

drawing = pytest.importorskip("tools.mutants.drawing", reason="cosmic-ray is not installed", exc_type=ImportError)

ROOT = Path(__file__).parents[3]

SOURCE = '''\
"""Adds 1 + 1."""

from dataclasses import dataclass

Number = int | float
SLOWER = 1e18


@dataclass(frozen=True)
class Pond:
    """A pond of 3 frogs."""

    frogs: int | None = 3

    def __repr__(self) -> str:
        return "frogs" * 2

    def is_full(self, größe: int, *words: str, **more: "int | str") -> bool:
        if größe < 2 and not words:
            raise ValueError(f"größe={größe + 1}: at least {2 * 1}")
        return f"{größe}" == "ä" or größe is None or größe - -1 > 0
'''


def changes(source: str) -> dict[str, set[str]]:
    """Return, for each place that is mutated, its text with three characters around, and the changed lines."""
    found = {}
    for (line, column), choices in drawing.find_places(source).items():
        lines = {drawing.mutated(source, name, occurrence).splitlines()[line - 1] for name, occurrence, _ in choices}
        found[f"{line}:{source.splitlines()[line - 1][column : column + 3].strip()}"] = {one.strip() for one in lines}
    return found


def test_operators_and_constants_are_mutated_but_no_texts_and_types():
    assert changes(SOURCE).keys() == {
        *("6:1e1", "13:3", "19:< 2", "19:2 a", "19:and", "19:not"),
        *("21:==", "21:or", "21:is", "21:- -", "21:-1", "21:1 >", "21:> 0", "21:0"),
    }


def test_small_integers_change_by_one_and_other_numbers_by_a_factor():
    assert changes("a = 3")["1:3"] == {"a = 4", "a = 2"}
    assert changes("a = 1e18")["1:1e1"] == {"a = 2e+18", "a = 5e+17"}
    assert changes("a = 0.0")["1:0.0"] == {"a = 1.0", "a = -1.0"}
    assert changes("a = 1024")["1:102"] == {"a = 2048", "a = 512"}


def test_an_operator_becomes_another_of_its_kind():
    assert changes("a * b")["1:* b"] == {f"a {sign} b" for sign in ("+", "-", "/", "//", "%", "**")}
    assert changes("a is b")["1:is"] == {"a is not b"}
    assert changes("not a")["1:not"] == {"a"}


def test_the_star_before_named_arguments_is_no_product():
    assert changes("def scaled(x, *, by): return x * by").keys() == {"1:* b"}


def test_arguments_that_change_no_result_are_left_out():
    assert changes("print(a, flush=True, end=b * c); zip(a, b, strict=True)").keys() == {"1:* c"}


def test_a_seed_draws_the_same_mutants_and_each_place_once(tmp_path):
    room = tmp_path / "src/frog/pond"
    room.mkdir(parents=True)
    (room / "pond.py").write_text(SOURCE)
    drawn = drawing.draw_mutants(tmp_path, "pond", 100, seed=1)
    assert len(drawn) == len(drawing.find_places(SOURCE))
    assert drawn == drawing.draw_mutants(tmp_path, "pond", 100, seed=1)
    assert drawn != drawing.draw_mutants(tmp_path, "pond", 100, seed=2)
    assert {mutant.part for mutant in drawn} == {"SLOWER", "Pond"}


def test_rooms_get_mutants_by_their_lines_but_not_fewer_than_the_smallest_number():
    assert share({"pond": 100, "lake": 900, "sea": 9000}, 300) == {"pond": 25, "lake": 27, "sea": 248}
    assert share({"pond": 500, "lake": 500}, 10) == {"pond": 5, "lake": 5}


def test_function_of_a_line_is_the_outermost_one_with_its_classes():
    source = """\
LIMIT = 3
class Pond:
    depth = 4
    class Frog:
        def jump(self, far=5):
            def inner():
                return 1
            return inner
@decorated(6)
def swim(
    far=7
):
    return [far for _ in range(8)]
"""
    names = {number: function_at(source, number) for number in range(1, 14)}
    assert {number: name for number, name in names.items() if name} == {
        **dict.fromkeys((6, 7, 8), "Pond.Frog.jump"),
        13: "swim",
    }


PROGRAM = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from tools.mutants.drawing import draw_mutants
from tools.mutants.trying import Copy

root = Path(sys.argv[1])
copy = Copy(root)
tests = ["tests/pond/test_pond.py"]
assert copy.record(["tests/pond"], root / "calls.tsv").outcome == "survived"
for mutant in draw_mutants(root, "pond", 100, seed=1):
    print(json.dumps({**asdict(mutant), **asdict(copy.try_mutant(mutant, [f"{tests[0]}::test_deep"], tests, 60))}))
print(json.dumps(sorted(copy.failing([f"{tests[0]}::test_wrong", f"{tests[0]}::test_deep"]))))
print(json.dumps((copy.root / "src/frog/pond/pond.py").read_text() == (root / "src/frog/pond/pond.py").read_text()))
copy.remove()
"""


@pytest.mark.slow
def test_mutants_are_noticed_in_a_copy_of_the_project(tmp_path):
    files = {
        "src/frog/__init__.py": "",
        "src/frog/pond/pond.py": "def is_deep(depth, unused=7):\n    return depth > 3\n",
        "tests/pond/test_pond.py": (
            "import pytest, subprocess, sys\n"
            "from frog.pond.pond import is_deep\n"
            "def test_deep():\n"
            "    subprocess.Popen(['sleep', '300'])\n"
            "    assert is_deep(4) and not is_deep(3)\n"
            "@pytest.mark.slow\n"
            "def test_wrong(): assert False\n"
        ),
        "pytest.ini": "[pytest]\nmarkers =\n    slow: x\n    alone: x\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    words = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *records, failing, is_restored = map(json.loads, done.stdout.splitlines())
    outcomes = {record["before"]: set() for record in records}
    for record in records:
        outcomes[record["before"]].add((record["outcome"], record["by"]))
    assert outcomes == {
        "def is_deep(depth, unused=7):": {("survived", "")},
        "return depth > 3": {("noticed", "tests/pond/test_pond.py::test_deep")},
    }
    assert {record["called"] for record in records if record["outcome"] == "noticed"} == {True}
    assert read_calls(tmp_path) == {"src/frog/pond/pond.py:is_deep": {"tests/pond/test_pond.py::test_deep"}}
    assert failing == []
    assert is_restored
    assert "| pond | 3 | 2 | 0 | 0 |" in table([{**record, "tests": 1} for record in records])
