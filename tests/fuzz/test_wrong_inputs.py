"""Wrong inputs for every reader of files: the same in every run, unless FUZZ_SEED is set.

`benchmarks/fuzz.py` runs any number of cases, including those that need their own process.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cases import Finding, run_cases
from material import make_material
from promises import MOST_OUTPUT, check_kept, check_output, is_allowed, run_job
from sandbox import Sandbox

CASES = 2000
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "material"
    make_material(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wrong_input_breaks_no_promise(material: Path, tmp_path: Path) -> None:
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
def test_problems_of_output_are_detected(data: bytes, said: str) -> None:
    assert said in (check_output(data) or "")
    assert check_output("frog ✓\n\tgood".encode()) is None


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    files = {
        "runs/one/record.json": '{"status": "completed"}',
        "data/tiny/a.bin": "1",
        "course/exercises/a.py": "x = 1\n",
    }
    for name, text in files.items():
        (tmp_path / "material" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "material" / name).write_text(text)
    return Sandbox(tmp_path / "material", tmp_path / "place" / "box")


@pytest.mark.parametrize(
    ("name", "writes", "failed", "said"),
    [
        ("runs/one/record.json", ("runs/",), False, "a completed run is"),
        ("runs/one/record.json", ("runs/",), True, "by a command that failed"),
        ("data/tiny/a.bin", ("data/",), True, "by a command that failed"),
        ("data/tiny/a.bin", ("runs/",), False, "wrote outside of"),
        ("new/file", ("runs/",), False, "wrote outside of"),
        ("course/exercises/a.py", ("course/",), False, "the learner's work is lost"),
        ("data/tiny/a.bin", ("data/",), False, None),
        ("course/progress.html", ("course/",), True, None),
    ],
)
def test_stray_writes_and_lost_files_are_detected(
    sandbox: Sandbox, name: str, writes: tuple[str, ...], failed: bool, said: str | None
) -> None:
    before = sandbox.look()
    path = sandbox.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("changed")
    found = list(check_kept(sandbox, before, sandbox.look(), writes, failed, ("", b"")))
    assert found == [] if said is None else said in found[0]
    sandbox.restore(sandbox.look())
    assert sandbox.look() == before == sandbox.look_after("data/tiny/a.bin")


def test_files_next_to_the_sandbox_are_found_and_removed(sandbox: Sandbox) -> None:
    beside = sandbox.folder.parent / "evil"
    beside.write_text("")
    assert not is_allowed(str(beside), sandbox.folder)
    assert sandbox.strays() == [str(beside)]
    assert sandbox.strays() == []


def test_injected_command_in_a_job_file_is_detected(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = sandbox.folder / "mark"
    monkeypatch.setenv("EVIL", str(mark))
    run_job(b"set -eu\nsrun --comment='$(echo>$EVIL)' x\nexit 2\n", sandbox.folder)
    assert not mark.exists()
    run_job(b"srun x\nexit 2\nmodule load $(echo>$EVIL)\n", sandbox.folder)
    assert mark.exists()
