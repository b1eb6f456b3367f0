"""Which files a bundle of a program takes, leaves out and refuses, and the sums of a bundle."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from frog.cluster.submit.bundle_folder import SUMS, check_sums
from frog.cluster.submit.left_out import left_out, left_out_line, refuse_secrets, without_bundles
from frog.cluster.submit.submitted_work import find_program_files, imported_packages, is_text, largest
from frog.core.errors import UsageError


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


PROGRAM: dict[str, str | bytes] = {
    "train.py": "import os, torch\nfrom lib.a import thing\nimport lib.deep.b\n",
    "lib/__init__.py": "",
    "lib/a.py": "from . import c\nfrom .deep import b\nthing = 1\n",
    "lib/c.py": "import train\n",
    "lib/unused.py": "",
    "lib/deep/__init__.py": "from ..d import x\n",
    "lib/deep/b.py": "",
    "lib/d.py": "x = 1\n",
    "lib/deep/d.py": "",
    "conf/a.yaml": "x: 1",
    "data.bin": b"\0\1",
    "other.txt": "",
}


@pytest.mark.parametrize(
    ("words", "script", "expected", "data"),
    [
        (["train.py"], "train.py", {"train.py", "lib/a.py", "lib/c.py", "lib/d.py"}, set()),
        (["train.py", "conf/a.yaml"], "train.py", {"train.py", *(f"lib/{n}.py" for n in "acd"), "conf/a.yaml"}, set()),
        (["lib/c.py", "--config=conf/a.yaml", "data.bin"], "lib/c.py", {"lib/c.py", "conf/a.yaml"}, {"data.bin"}),
        (["-m", "lib.a"], None, {"lib/a.py", "lib/c.py", "lib/d.py", "train.py"}, set()),
        (["-m", "lib"], None, set(), set()),
        (["-c", "pass"], None, set(), set()),
    ],
)  # fmt: skip
def test_program_takes_what_it_imports_and_names(
    words: list[str], script: str | None, expected: set[str], data: set[str], tmp_path: Path
) -> None:
    write(tmp_path, PROGRAM)
    found = find_program_files(words, script, [], tmp_path)
    packages = {"lib/__init__.py", "lib/deep/__init__.py", "lib/deep/b.py"}
    taken = set(found.sent)
    assert taken - packages == expected
    assert set(found.data) == data
    if "lib/a.py" in expected:
        assert packages <= taken


def test_packages_are_the_imported_names_that_no_file_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {**PROGRAM, "broken.py": "def"})
    monkeypatch.chdir(tmp_path)
    files = [Path(name) for name in ("train.py", "lib/a.py", "lib/c.py", "lib/deep/b.py", "broken.py")]
    assert imported_packages(files) == {"os", "torch"}


def test_text_is_utf_8_without_zeros_and_the_three_largest_files_are_shown(tmp_path: Path) -> None:
    write(tmp_path, {"a": "é", "b": b"\xff", "c": "x\0", "d": "x" * 9, "e": "x" * 3})
    assert [is_text(tmp_path / name) for name in "abcd"] == [True, False, False, True]
    assert [part.split(" ")[0] for part in largest("abcde", tmp_path).split(", ")] == ["d", "e", "c"]
    with pytest.raises(UsageError, match="cannot be read"):
        is_text(tmp_path / "missing")


def test_folder_of_which_nothing_is_taken_counts_once(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(("a/b/c.py", "a/b/d.py", "a/e.py", "f/g.py", "f/h/i.py", "top", ".git/x"), ""))
    write(tmp_path, dict.fromkeys(("a/__pycache__/c.pyc", "__pycache__/x.pyc", "out/b.py", "out2/b.py"), ""))
    found = left_out(tmp_path, ["a/b/c.py", "top"], tmp_path / "out")
    assert found == ["f/", "out2/", "a/e.py", "a/b/d.py"]
    assert left_out(tmp_path, ["a/b/c.py"], tmp_path / "a/b")[-1] == "a/b/d.py"
    assert left_out_line([]) == ""
    names = [f"n{number}" for number in range(14)]
    assert left_out_line(names[:12]) == f"left out: {', '.join(names[:12])}\n"
    assert left_out_line(names) == f"left out: {', '.join(names[:12])} and 2 more\n"


@pytest.mark.parametrize(
    ("name", "content", "is_secret"),
    [
        ("a/.env", "", True),
        (".ENV.local", "", True),
        ("a/.ssh/config", "", True),
        ("ssh/config", "", False),
        ("key.pub", "PRIVATE KEY-----", False),
        (".env.example", "", False),
        ("notes.txt", "x" * 4000 + "-----BEGIN PRIVATE KEY-----", True),
        ("notes.txt", "x" * 4096 + "-----BEGIN PRIVATE KEY-----", False),
        ("credentials.json.txt", "", False),
        ("my-service_account-1.json", "", True),
    ],
)
def test_secrets_are_refused_unless_allowed(name: str, content: str, is_secret: bool, tmp_path: Path) -> None:
    write(tmp_path, {name: content})
    refuse_secrets(tmp_path, [name], [name])
    if not is_secret:
        refuse_secrets(tmp_path, [name], [])
        return
    with pytest.raises(UsageError, match="look like passwords or keys") as error:
        refuse_secrets(tmp_path, [name], [])
    assert f"--exclude {name}" in str(error.value.hint)
    assert f"--secret {name}" in str(error.value.hint)


def test_earlier_bundles_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"old/job.sbatch": "", f"old/{SUMS}": "", "old/x/y.py": "", f"sums/{SUMS}": "", "older.py": ""})
    names = ["old/job.sbatch", f"old/{SUMS}", "old/x/y.py", f"sums/{SUMS}", "older.py"]
    assert without_bundles(tmp_path, names) == [f"sums/{SUMS}", "older.py"]


def test_sums_name_each_file_that_is_missing_altered_or_unlisted(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1", "b": "2", "c/d": "3", "e": "4"})
    digest = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("a", "b", "c/d", "e")}
    lines = [f"{digest[name]}  {name}" for name in digest]
    write(tmp_path, {SUMS: "\n".join(lines) + "\n"})
    assert check_sums(tmp_path) == []
    write(tmp_path, {"b": "other", "new": ""})
    (tmp_path / "e").unlink()
    extra = [f"{digest['a']}  a", "nonsense", f"{digest['a']}  ../a", f"{digest['a']}  /a"]
    write(tmp_path, {SUMS: "\n".join([*lines, *extra]) + "\n"})
    problems = check_sums(tmp_path)
    assert problems[0].startswith("b: ")
    assert problems[1:] == [
        "e: missing",
        f"{SUMS}, line 5: a is listed twice",
        f"{SUMS}, line 6: not a hash and a name",
        "../a: outside the bundle",
        "/a: outside the bundle",
        f"new: not in {SUMS}",
    ]
    with pytest.raises(UsageError, match=f"not a bundle: {SUMS} is missing"):
        check_sums(tmp_path / "c")
