"""Solutions as edits of the reference: read, apply, compute and write them."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import pytest
from mutations import held_to_its_schema

from frog.core.errors import UsageError
from frog.learn.edits import (
    KINDS,
    Edit,
    apply_edits,
    edits_in,
    entry_text,
    find_edits,
    read_edits,
    toml_text,
    with_entry,
)
from frog.learn.grader.exercise import Exercise, find_exercises

FILES = {"step.py": b"a = 1\nb = 2\nc = 3\nb = 22\n", "host": b"one\ntwo\n"}
TABLE = """\
# A comment at the top.

# About b.
[[wrong.adds]]  # the first edit
replace = 'a = 1'
by = 'a = 2'  # doubled

[[wrong.adds]]
file = 'host'
replace = '''
two
'''
by = ''

[[wrong."adds.2"]]
replace = '''
# not a comment
[[wrong.not-a-table]]
'''
by = "x"
"""


def test_edits_apply_to_the_reference_in_any_order() -> None:
    edits = [
        Edit(replace="c = 3\n", by="a = 1\n"),
        Edit(replace="a = 1", by="c = 3"),
        Edit(replace="two", by="2", file="host"),
    ]
    expected = {"step.py": b"c = 3\nb = 2\na = 1\nb = 22\n", "host": b"one\n2\n"}
    assert apply_edits(FILES, edits) == (expected, [])
    assert apply_edits(FILES, edits[::-1]) == (expected, [])


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (Edit(replace="d = 4", by=""), "`d = 4` occurs 0 times in reference/step.py, expected once"),
        (Edit(replace="b = 2\nd = 4\n", by=""), "`b = 2` (the first of 2 lines) occurs 0 times in reference/step.py"),
        (Edit(replace="b = 2", by=""), "`b = 2` occurs 2 times in reference/step.py, expected once"),
        (Edit(replace="1", by="1"), "`1` is replaced by the same text"),
        (Edit(replace="one", by="", file="hosts"), "the reference has no file hosts, expected one of step.py, host"),
        (Edit(replace="= 3\nb", by=""), "`= 3` (the first of 2 lines) overlaps with `c = 3` in reference/step.py"),
    ],
)
def test_edit_that_does_not_apply_is_reported_and_left_out(edit: Edit, problem: str) -> None:
    files, problems = apply_edits(FILES, [edit, Edit(replace="c = 3", by="c = 4")])
    assert files == {**FILES, "step.py": FILES["step.py"].replace(b"c = 3", b"c = 4")}
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_occurrences_that_overlap_each_other_count() -> None:
    _, problems = apply_edits({"a": b"aaa"}, [Edit(replace="aa", by="b")])
    assert problems == ["`aa` occurs 2 times in reference/a, expected once"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[[wrong.a]]\nreplace = 'a'\n", r"solutions.toml: wrong/a: .*missing required field by"),
        ("[[wrong.a]]\nreplace = ''\nby = 'b'\n", r"wrong/a: \$\[0\].replace: found the text \"\""),
        ("[[wrong.a]]\nreplace = 'a'\nby = 'b'\nfiel = 'c'\n", r"wrong/a: .*unknown field fiel"),
        ("[[rong.a]]\nreplace = 'a'\nby = 'b'\n", r"found the table rong, expected \[\[wrong.NAME\]\]"),
        ("[[right.A]]\nreplace = 'a'\nby = 'b'\n", r"found the solution 'A', expected a name like sum-is-average.2"),
        (
            "[[wrong.a.2]]\nreplace = 'a'\nby = 'b'\n",
            "wrong/a: found an object, expected array",
        ),
        ("[right]\na = []\n", r"right/a: found a list, expected array of length >= 1"),
        ("[[wrong]]\n", r"wrong: found a list, expected object"),
    ],
)
def test_invalid_table_is_refused_by_solution(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "solutions.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_edits(path)
    assert str(path) in str(caught.value)
    assert caught.match(error)
    if "[[wrong.a.2]]" in text:
        assert caught.value.hint == 'quote a name with a dot: "a.2"'


def test_damaged_table_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "solutions.toml"
    path.write_text(TABLE)
    held_to_its_schema(path, lambda: read_edits(path))


def test_missing_table_has_no_solutions(tmp_path: Path) -> None:
    assert read_edits(tmp_path / "solutions.toml") == {"right": {}, "wrong": {}}


@pytest.mark.parametrize(
    ("old", "new", "edits"),
    [
        ("a\nb\nc\n", "a\nB\nc\n", [("b", "B")]),
        ("ab\nb\nc\n", "ab\nB\nc\n", [("ab\nb\n", "ab\nB\n")]),
        ("a\nb\nc\n", "a\nc\n", [("b\n", "")]),
        ("a\nb\nc\n", "a\nb\nx\nc\n", [("b\n", "b\nx\n")]),
        ("a\nb\nc\n", "x\na\nb\nc\n", [("0019\n", "0019\nx\n")]),
        ("a\nb\n\n)\nc\nd\n", "a\nB\n\n)\nC\nd\n", [("b\n\n)\nc\n", "B\n\n)\nC\n")]),
        ("a\nb\nc\nd\ne\n", "A\nb\nc\nd\nE\n", [("a", "A"), ("e", "E")]),
        ("a\nb\nc\nd", "a\nb\nc\ne", [("d", "e")]),
        ("x\ny\na\nx\ny\nb\n", "x\ny\na\nx\nY\nb\n", [("y\nb\n", "Y\nb\n")]),
    ],
)
def test_computed_edits_are_whole_lines_with_little_context(old: str, new: str, edits: list[tuple[str, str]]) -> None:
    padding = "".join(f"{n:04}\n" for n in range(20))
    found = find_edits({"step.py": (padding + old).encode()}, {"step.py": (padding + new).encode()})
    assert found is not None
    assert [(edit.replace, edit.by) for edit in found] == edits


def test_large_difference_and_binary_file_have_no_edits() -> None:
    assert find_edits({"a": b"one\ntwo\nthree\n"}, {"a": b"four\nfive\nsix\n"}) is None
    assert find_edits({"a": b"one\n"}, {"a": b"\xff\n"}) is None
    assert find_edits({"a": b"one\n"}, {"a": b"one\n"}) is None


def test_edits_of_every_solution_reproduce_it_through_toml() -> None:
    """Compute the edits of all solutions of the course, whether they are stored as edits or as files."""
    num_edited = 0
    for exercise in find_exercises():
        reference = {name: exercise.reference()[name] for name in exercise.manifest.files}
        for solution in (one for kind in KINDS for one in exercise.solutions(kind)):
            own = {name: solution.files()[name] for name in reference}
            edits = find_edits(reference, own)
            if edits is None:
                assert solution.path is not None, f"{exercise.id} {solution.title}: add it again, as a file"
                continue
            num_edited += 1
            table = tomllib.loads(entry_text(solution.kind, solution.name, edits))
            read = edits_in(table, "solutions.toml")[solution.kind][solution.name]
            assert (read, apply_edits(reference, read)) == (edits, (own, [])), f"{exercise.id} {solution.title}"
    assert num_edited > 1500


def test_any_text_survives_toml() -> None:
    draw = random.Random(7)
    pieces = [
        "'",
        "''",
        "'''",
        '"',
        '"""',
        "\\",
        "\n",
        "\r",
        "\t",
        "\0",
        "x",
        " ",
        "é",
        "\x85",
        "\U0001f438",
        "#",
        "\\n",
    ]
    for text in ["", *("".join(draw.choices(pieces, k=draw.randint(1, 8))) for _ in range(3000))]:
        assert tomllib.loads(f"text = {toml_text(text)}\n[[more]]\n")["text"] == text, repr(text)


def test_entry_is_added_in_order_of_names_and_leaves_other_text_alone() -> None:
    edits = [Edit(replace="c = 3", by="it's")]
    added = "replace = 'c = 3'\nby = \"it's\"\n"
    assert with_entry("", "wrong", "a", edits) == f"[[wrong.a]]\n{added}"
    assert with_entry(TABLE, "wrong", "b", edits) == f"{TABLE}\n[[wrong.b]]\n{added}"
    assert with_entry(TABLE, "right", "z", edits) == TABLE.replace("# About b.", f"[[right.z]]\n{added}\n# About b.")
    middle = f'[[wrong."adds.10"]]\n{added}\n[[wrong."adds.2"]]'
    assert with_entry(TABLE, "wrong", "adds.10", edits) == TABLE.replace('[[wrong."adds.2"]]', middle)


def test_entry_is_replaced_in_place_and_keeps_its_comments() -> None:
    end = TABLE[TABLE.index('[[wrong."adds.2"]]') :]
    found = with_entry(TABLE, "wrong", "adds", [Edit(replace="c = 3", by="c = 4")])
    assert found == (
        "# A comment at the top.\n\n# About b.\n# the first edit\n# doubled\n"
        f"[[wrong.adds]]\nreplace = 'c = 3'\nby = 'c = 4'\n\n{end}"
    )
    same = [Edit(replace="a = 1", by="a = 2"), Edit(replace="two\n", by="", file="host")]
    assert with_entry(TABLE, "wrong", "adds", same) == TABLE


def test_entry_without_edits_is_removed_with_its_comments() -> None:
    end = TABLE[TABLE.index('[[wrong."adds.2"]]') :]
    assert with_entry(TABLE, "wrong", "adds", ()) == f"# A comment at the top.\n\n{end}"
    assert with_entry("[[wrong.a]]\nreplace = 'a'\nby = 'b'\n", "wrong", "a", ()) == ""


def test_solution_in_both_forms_is_refused(tmp_path: Path) -> None:
    from small_course import write_course

    exercise = Exercise(write_course(tmp_path / "labs") / "lab1/01_first")
    (exercise.folder / "solutions.toml").write_text("[[wrong.two]]\nreplace = 'return 1'\nby = 'return 2'\n")
    assert exercise.solutions("wrong")[0].files() == {"step.py": b"def step() -> int:\n    return 2\n"}
    (exercise.folder / "wrong").mkdir()
    (exercise.folder / "wrong/two.py").write_text("")
    with pytest.raises(UsageError, match=r"lab1/01_first: wrong/two is both in solutions.toml and in .*wrong/two.py"):
        exercise.solutions("wrong")


def test_edit_that_no_longer_applies_names_exercise_solution_text_and_next_step(tmp_path: Path) -> None:
    from small_course import write_course

    exercise = Exercise(write_course(tmp_path / "labs") / "lab1/01_first")
    (exercise.folder / "solutions.toml").write_text("[[wrong.two]]\nreplace = 'return 3'\nby = 'return 2'\n")
    with pytest.raises(UsageError) as caught:
        exercise.solutions("wrong")[0].files()
    said = "lab1/01_first: solutions.toml: wrong/two: `return 3` occurs 0 times in reference/step.py, expected once"
    assert str(caught.value).splitlines()[0] == said
    assert "frog learn dev show lab1/01_first wrong/two --into DIR" in str(caught.value.hint)
    assert "frog learn dev add lab1/01_first wrong/two DIR/*" in str(caught.value.hint)
