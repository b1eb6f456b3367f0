"""`frog drill`: it draws possible faults, judges answers, and makes a real run fail in the right place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frog.cli import main
from frog.core.config.faults import Fault, Scene
from frog.core.runs.folder import RunFolder
from frog.learn import drill
from frog.learn.drill import STEPS, draw_fault, run_into
from frog.learn.progress import begin_progress, read_progress
from frog.observe.diagnose.run_diagnosis import diagnose

FAULT = Fault(kind="kill", rank=1, step=2, phase="reduce")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a course folder the current directory, with a known fault and without a real run."""
    (tmp_path / "exercises").mkdir()
    begin_progress(tmp_path, "Ada")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(drill, "draw_fault", lambda seed, num_ranks: FAULT)
    monkeypatch.setattr(drill, "run_into", lambda fault, num_ranks, name: None)
    return tmp_path


def answer(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Type these lines, then end the input."""
    typed = iter(lines)

    def line(prompt: str) -> str:
        if (text := next(typed, None)) is None:
            raise EOFError
        return text

    monkeypatch.setattr("frog.learn.typed.read_line", line)


def test_every_drawn_fault_can_occur_in_the_run() -> None:
    scene = Scene(world_size=4, steps=STEPS, checkpoint_every=1, eval_every=2)
    drawn = [draw_fault(seed, 4) for seed in range(200)]
    assert [problem for fault in drawn for problem in scene.problems(fault)] == []
    assert {fault.kind for fault in drawn} == set(drill.KINDS)
    assert {fault.phase for fault in drawn} == set(drill.PHASES)
    assert {fault.rank for fault in drawn} == set(range(4))
    assert draw_fault(7, 4) == draw_fault(7, 4)


def test_drill_answers_are_judged_and_recorded(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, "1", "9", "3", "Reduce")
    assert main(["drill", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert "expected one of 1, 2, 3" in out, "9 is not a step"
    assert "rank 1: right\nstep 3: wrong, it was 2\nphase reduce: right\n" in out
    assert "2 of 3 right (seed 5): kill rank=1 step=2 phase=reduce\nthe evidence: frog diagnose drill-5" in out
    kept = read_progress(here)
    assert [(one.seed, one.fault, one.right) for one in kept.drills] == [(5, str(FAULT), 2)]
    assert [entry.what for entry in kept.journal] == ["drill"]
    assert main(["learn", "progress"]) == 0
    assert "2 of 3: kill rank=1 step=2 phase=reduce" in capsys.readouterr().out
    assert "kill rank=1 step=2 phase=reduce" in (here / "progress.html").read_text()


def test_drill_keeps_an_existing_run_of_the_same_seed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs" / "drill-5").mkdir(parents=True)
    answer(monkeypatch, "1", "2", "reduce")
    assert main(["drill", "--seed", "5"]) == 0
    assert "frog diagnose drill-5-2" in capsys.readouterr().out


@pytest.mark.parametrize("lines", [(), ("1", "q"), ("1", "2")])
def test_quitting_a_drill_reveals_and_records_nothing(
    lines: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, *lines)
    assert main(["drill", "--seed", "5"]) == 0
    assert "kill" not in capsys.readouterr().out
    assert read_progress(here).drills == ()


@pytest.mark.parametrize("nproc", ["1", "17"])
def test_drill_refuses_a_world_that_is_too_small_or_too_large(
    nproc: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drill", "--nproc", nproc]) == 2
    assert f"--nproc {nproc}: must be 2 to 16" in capsys.readouterr().err


@pytest.mark.slow
def test_drill_run_fails_at_the_chosen_place_without_revealing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_into(FAULT, 2, "drill-1")
    assert capfd.readouterr() == ("", "")
    found = diagnose(RunFolder(Path("runs/drill-1")))
    assert (found.fault, found.rank, found.step, found.phase) == ("kill", 1, 2, "reduce")


@pytest.mark.parametrize("kind", drill.KINDS)
def test_watchdog_timeout_is_shortened_only_for_a_stopped_rank(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(command: list[str], *_: object) -> None:
        raise Started("--deadline" in command)

    monkeypatch.setattr("frog.measure.chaos.sandbox.tiny_program", lambda: ["train", "tiny.toml"])
    monkeypatch.setattr("frog.launch.harness.Program", start)
    with pytest.raises(Started, match=str(kind == "stop")):
        run_into(replace(FAULT, kind=kind), 2, "drill-1")


@pytest.mark.parametrize("seed", ["-1", "9" * 400])
def test_seed_outside_the_valid_range_is_refused(seed: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", f"--seed={seed}"]) == 2
    assert "must be 0 to 2^63 - 1" in capsys.readouterr().err
