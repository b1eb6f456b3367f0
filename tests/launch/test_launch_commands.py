"""`frog run`, from its options to the world that it starts; the world only notes how it is started."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frog import hooks
from frog.cli import main
from frog.core.errors import LaunchError, UsageError
from frog.launch import world
from frog.launch.launch_commands import CHECK_HOOKS, add_world_arguments, read_world
from frog.launch.network import parse_network
from frog.launch.node_agents import Options
from frog.launch.nodes import Nodes

# ---- options of a world ----------------------------------------------------------------------------------------------


def read(*words: str, **more: Any) -> tuple[Nodes, Options]:
    parser = argparse.ArgumentParser()
    add_world_arguments(parser)
    return read_world(parser.parse_args(words), **more)


@pytest.mark.parametrize(
    ("words", "nodes", "options"),
    [
        ("--nproc 4", Nodes(1, 1, 4), Options()),
        ("--nodes 2x3", Nodes(2, 2, 3), Options()),
        ("--nodes 1:3x2", Nodes(1, 3, 2), Options(restarts=3)),
        ("--nodes 1:3x2 --restarts 0", Nodes(1, 3, 2), Options(restarts=0)),
        ("--nproc 1 --restarts 2 --replace 1 --threads 5", Nodes(1, 1, 1), Options(5, 2, replace=1)),
        ("--nproc 1 --deadline 2", Nodes(1, 1, 1), Options(deadline_s=2, idle_s=2)),
        ("--nproc 1 --deadline 1e9", Nodes(1, 1, 1), Options(deadline_s=1e9, idle_s=1e9)),
        ("--nodes 2 --network rate=1mbit", Nodes(2, 2, 1), Options(network=parse_network("rate=1mbit"))),
    ],
)
def test_world_is_that_of_its_options(words: str, nodes: Nodes, options: Options) -> None:
    assert read(*words.split()) == (nodes, options)
    asked = read(*words.split(), extra_env={"A": "b"})
    assert asked == (nodes, replace(options, extra_env={"A": "b"}))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "no world size"),
        ("--nproc 1 --deadline 1.99", "--deadline 1.99 is too short"),
        ("--nproc 1 --deadline -1", "--deadline -1 is too short"),
        ("--nproc 1 --deadline inf", "--deadline inf is too short"),
        ("--nproc 1 --deadline nan", "--deadline nan is too short"),
        ("--nproc 2 --network rate=1mbit", "--network needs several nodes"),
        ("--nodes 1x2 --network rate=1mbit", "--network needs several nodes"),
        ("--nodes 2 --network fast", "'fast' is not one of"),
    ],
)
def test_world_that_cannot_be_is_refused_with_a_hint(words: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*words.split())
    assert said in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    "words", ["--nproc 0", "--nproc 1 --nodes 2", "--threads 0", "--restarts -1", "--replace -1", "--deadline soon"]
)
def test_number_out_of_its_range_is_refused_by_the_parser(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read(*words.split())
    assert words.split()[-2] in capsys.readouterr().err


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Nodes, list[str], Options]]:
    """Return the worlds that are started; each ends with exit code 7."""
    found: list[tuple[Nodes, list[str], Options]] = []

    def run_world(nodes: Nodes, program: list[str], options: Options) -> int:
        found.append((nodes, [*program], options))
        return 7

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").touch()
    monkeypatch.setattr(world, "run_world", run_world)
    return found


RUNS = Options(runs=Path("runs"))


@pytest.mark.parametrize(
    ("words", "nodes", "program", "options"),
    [
        ("--nproc 2 -- my.py --x 1", Nodes(1, 1, 2), "my.py --x 1", RUNS),
        ("--nproc 2 my.py -- y", Nodes(1, 1, 2), "my.py -- y", RUNS),
        ("--nproc 2 --no-observe -- my.py", Nodes(1, 1, 2), "my.py", replace(RUNS, observe=False)),
        ("--nodes 2 --simulate-gpus 3 -- my.py", Nodes(2, 2, 1), "my.py", replace(RUNS, simulate_gpus=3)),
        ("-- torchrun --nproc-per-node 3 --max-restarts 2 my.py", Nodes(1, 1, 3), "my.py", replace(RUNS, restarts=2)),
    ],
)
def test_program_is_run_in_its_world(
    words: str, nodes: Nodes, program: str, options: Options, started: list[tuple[Nodes, list[str], Options]]
) -> None:
    assert main(["run", *words.split()]) == 7
    assert started == [(nodes, program.split(), options)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--nproc 2 --dry-run -- my.py", "--dry-run: needs a manifest"),
        ("--nproc 2 --check --no-observe -- my.py", "--check needs the observer"),
        (
            "--nproc 2 --check 5 -- -m frog.measure.bench",
            "frog.measure.bench does not train, so there is nothing to check",
        ),
        ("--from k8s.yaml --nproc 2", "--nproc cannot be combined with --from"),
        ("--from k8s.yaml --nodes 2", "--nodes cannot be combined with --from"),
        ("--from k8s.yaml --restarts 0", "--restarts cannot be combined with --from"),
        ("--from k8s.yaml --replace 1", "--replace cannot be combined with --from"),
        ("--from k8s.yaml --deadline 5", "--deadline cannot be combined with --from"),
        ("--from k8s.yaml --dry-run --threads 1", "--threads cannot be combined with --from"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    words: str,
    said: str,
    started: list[tuple[Nodes, list[str], Options]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("check_manifest", "run_manifest"):
        monkeypatch.setattr(hooks, name, lambda *_: pytest.fail("the manifest was used"))
    assert main(["run", *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert started == []


def test_manifest_is_run_or_only_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(hooks, "check_manifest", lambda *args: asked.append(("check", *args)) or 5)
    monkeypatch.setattr(hooks, "run_manifest", lambda *args: asked.append(("run", *args)) or 6)
    assert main(["run", "--from", "k8s.yaml", "--dry-run"]) == 5
    assert main(["run", "--from", "k8s.yaml", "--", "my.py"]) == 6
    assert asked == [("check", Path("k8s.yaml")), ("run", Path("k8s.yaml"), ["my.py"])]


# ---- a program and an answer about its run ---------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "every"), [(["--check"], "50"), (["--check", "7"], "7")])
def test_checked_program_records_its_numbers_and_is_answered(
    words: list[str],
    every: str,
    started: list[tuple[Nodes, list[str], Options]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The answer is printed below the program's output."""

    def run_and_answer(nodes: Nodes, program: list[str], options: Options, answer: Callable[[Path], int]) -> int:
        started.append((nodes, [*program], options))
        return answer(Path("runs/my"))

    monkeypatch.setattr(world, "run_and_answer", run_and_answer)
    monkeypatch.setattr(hooks, "print_answers", lambda folder: print(f"answers of {folder}") or 3)
    assert main(["run", "--nproc", "2", *words, "--", "my.py"]) == 3
    assert started == [(Nodes(1, 1, 2), ["my.py"], replace(RUNS, extra_env={"FROG_CHECK": every}, hooks=CHECK_HOOKS))]
    assert capsys.readouterr().out == "\nanswers of runs/my\n"


FAILED = LaunchError("the world failed")


@pytest.mark.parametrize(
    ("code", "has_folder", "said", "expected"),
    [
        (0, True, 0, 0),
        (0, True, 1, 1),
        (7, True, 0, 7),
        (7, True, 1, 7),
        (7, False, 0, 7),
        (FAILED, True, 1, FAILED),
        (FAILED, False, 0, FAILED),
    ],
)
def test_exit_code_is_the_programs_or_that_of_the_answer(
    code: int | LaunchError,
    has_folder: bool,
    said: int,
    expected: int | LaunchError,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered: list[Path] = []

    def run_world(nodes: object, program: object, options: Options) -> int:
        assert options.on_folder is not None
        if has_folder:
            options.on_folder(tmp_path)
        if isinstance(code, LaunchError):
            raise code
        return code

    monkeypatch.setattr(world, "run_world", run_world)

    def run() -> int:
        return world.run_and_answer(2, ["my.py"], Options(), lambda folder: answered.append(folder) or said)

    if isinstance(expected, LaunchError):
        with pytest.raises(LaunchError, match="the world failed"):
            run()
    else:
        assert run() == expected
    assert answered == [tmp_path] * has_folder  # also of a failed program
