"""`frog chaos` for programs that are not Frog's, and its resume test, with a launch that only leaves files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from frog.cli import main
from frog.core.errors import LaunchError
from frog.measure.chaos import program
from frog.measure.chaos.resume_test import comparison_lines
from frog.train.checkpoint.foreign import Difference

Launch = Callable[[int, Sequence[str], Path], int]
"""Receives the number of the launch, the program's words and the folder for marks; returns the exit code."""


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Launch], list[list[dict[str, Any]]]]:
    """Return a function that replaces the launch; its result is the list of faults of each launch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").touch()

    def replace(launch: Launch) -> list[list[dict[str, Any]]]:
        seen: list[list[dict[str, Any]]] = []

        def run_world(nodes: object, words: Sequence[str], options: Any) -> int:
            path = Path(options.extra_env["FROG_FAULTS"])
            assert options.hooks == ("frog_observer", "frog_observer.faults")
            seen.append(json.loads(path.read_text()))
            return launch(len(seen), words, path.parent)

        monkeypatch.setattr(program, "run_world", run_world)
        return seen

    return replace


FAULTS = ["--fault", "exit rank=1 collective=4 code=3", "--fault", "kill rank=0 after=5"]


@pytest.mark.parametrize(
    ("happened", "code", "expected", "evidence"),
    [((0, 1), 7, 7, True), ((0,), 7, 7, True), ((), 7, 7, False), ((0, 1), 0, 0, False), ((1,), 0, 1, False)],
)
def test_exit_code_is_the_worlds_or_1_if_a_fault_never_happened(
    happened: Sequence[int],
    code: int,
    expected: int,
    evidence: bool,
    launches: Callable[[Launch], list[list[dict[str, Any]]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def launch(number: int, words: Sequence[str], marks: Path) -> int:
        for fault in happened:
            (marks / f"{fault}.done").write_text("1 4")
        return code

    seen = launches(launch)
    assert main(["chaos", "--nproc", "2", *FAULTS, "--", "my.py", "--x"]) == expected
    first, second = seen[0]
    assert (first["kind"], first["rank"], first["collective"], first["code"]) == ("exit", 1, 4, 3)
    assert (second["kind"], second["rank"], second["after_s"]) == ("kill", 0, 5)
    said = capsys.readouterr().err
    assert ("frog diagnose latest" in said) == evidence
    never = [line for line in said.splitlines() if "never happened" in line]
    expected_lines = ("exit rank=1 collective=4 code=3", "kill rank=0 after=5")
    assert never == [f"fault never happened: {text}" for n, text in enumerate(expected_lines) if n not in happened]


def test_failed_launch_has_its_error_and_code(
    launches: Callable[[Launch], list[list[dict[str, Any]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    def launch(number: int, words: Sequence[str], marks: Path) -> int:
        raise LaunchError("the world did not start")

    launches(launch)
    assert main(["chaos", "--nproc", "2", *FAULTS, "--", "my.py"]) == LaunchError.exit_code
    assert "error: the world did not start" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--campaign", "3"], "--campaign needs a training run of Frog's, not my.py"),
        (["--on-loss", "shrink"], "--on-loss needs a training run of Frog's, not my.py"),
        (["--faults", "f.toml"], "--faults needs a training run of Frog's, not my.py"),
        ([], "no fault specified"),
        (["--fault", "kill rank=1"], "needs either collective=N or after=SECONDS"),
        (["--fault", "kill rank=2 after=1"], "rank= must be 0 to 1"),
    ],
)
def test_options_for_runs_of_frog_and_no_fault_are_refused(
    words: list[str],
    message: str,
    launches: Callable[[Launch], list[list[dict[str, Any]]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = launches(lambda *_: 0)
    assert main(["chaos", "--nproc", "2", *words, "--", "my.py"]) == 2
    assert message in capsys.readouterr().err
    assert seen == []


def test_number_of_simulated_gpus_is_at_least_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["chaos", "--nproc", "2", "--simulate-gpus", "0", "--", "my.py"])
    assert "argument --simulate-gpus: 0: must be at least 1" in capsys.readouterr().err


# ---- the resume test -------------------------------------------------------------------------------------------------


def run_resume_test(
    launches: Callable[[Launch], list[list[dict[str, Any]]]],
    values: Sequence[float],
    folder: bool = True,
    codes: Sequence[int] = (0, 9, 0),
    happens: bool = True,
) -> tuple[int, list[Sequence[str]]]:
    """Let the three launches write a checkpoint with these values; return the exit code and their words."""
    commands: list[Sequence[str]] = []

    def launch(number: int, words: Sequence[str], marks: Path) -> int:
        commands.append(words)
        if folder:
            Path("out/step_1").mkdir(parents=True, exist_ok=True)
        path = Path("out/step_1/model.pt" if folder else "out.pt")
        torch.save({"w": torch.full((2,), values[number - 1]), "b": torch.ones(1)}, path)
        if number == 2 and happens:
            (marks / "0.done").write_text("1 4")
        return codes[number - 1]

    seen = launches(launch)
    path = "out" if folder else "out.pt"
    words = ["--resume-test", path, "--resume-args=--resume 'a b'", "--fault", "kill rank=0 after=5"]
    code = main(["chaos", "--nproc", "2", *words, "--", "my.py", "--x"])
    assert [len(faults) for faults in seen] == [0, 1, 0][: len(seen)]
    return code, commands


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize(("last", "code"), [(1.0, 0), (1.5, 1)])
def test_resumed_run_is_compared_with_the_undisturbed_one(
    last: float,
    code: int,
    folder: bool,
    launches: Callable[[Launch], list[list[dict[str, Any]]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, commands = run_resume_test(launches, (1.0, 7.0, last), folder)
    assert found == code
    assert [list(words[1:]) for words in commands] == [["--x"], ["--x"], ["--x", "--resume", "a b"]]
    said = capsys.readouterr().out
    for number, what in ((1, "undisturbed: exit code 0"), (2, "kill rank=0 after=5: exit code 9"), (3, "resumed with")):
        assert f"run {number} of 3: {what}" in said
    assert f"{2 - code} of 2 tensors are equal" in said
    assert ("w differs by up to 0.5" in said) == bool(code)


@pytest.mark.parametrize(
    ("options", "message", "num_launches"),
    [
        ({"codes": (4, 9, 0)}, "the undisturbed run failed with exit code 4", 1),
        ({"happens": False}, "the fault never happened", 2),
    ],
)
def test_resume_test_that_cannot_be_completed_says_why(
    options: dict[str, Any],
    message: str,
    num_launches: int,
    launches: Callable[[Launch], list[list[dict[str, Any]]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, commands = run_resume_test(launches, (1.0, 1.0, 1.0), **options)
    assert (code, len(commands)) == (2, num_launches)
    assert message in capsys.readouterr().err


def test_resume_test_needs_checkpoints_and_a_free_path(
    launches: Callable[[Launch], list[list[dict[str, Any]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    launches(lambda *_: 0)
    words = ["chaos", "--nproc", "2", "--resume-test", "out", "--fault", "kill rank=0 after=5", "--", "my.py"]
    assert main(words) == 2
    assert "wrote no checkpoint there" in capsys.readouterr().err
    for name in ("out", "out.undisturbed"):
        Path(name).mkdir()
        assert main(words) == 2
        assert f"{name} exists" in capsys.readouterr().err
        Path(name).rmdir()


def test_verdict_shows_the_ten_largest_differences_and_how_many_more() -> None:
    found = Difference(
        num_equal=3,
        different={f"w{number}": float(number) for number in range(12)},
        missing=[f"m{number}" for number in range(11)],
        other=[f"o{number}" for number in range(11)],
    )
    lines = comparison_lines(found, Path("a"), Path("b"))
    assert lines[0] == "a and b: 3 of 26 tensors are equal"
    assert lines[1:11] == [f"  w{number} differs by up to {number}" for number in range(11, 1, -1)]
    assert lines[11:21] == [f"  m{number} is in only one of them" for number in range(10)]
    assert lines[21:23] == ["  and 3 more", f"  other values that differ, not counted: {', '.join(found.other[:10])}"]
    assert lines[23].startswith("failed")
    assert len(lines) == 24
    assert comparison_lines(Difference(num_equal=3), Path("a"), Path("b"))[1:] == [
        "passed: the resumed run ends where the undisturbed one does"
    ]
