"""`frog observe` and `python -m frog.observe`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S, wait_until

from frog.cli import main
from frog.core.runs.observed import observed_folder, read_observed, read_statuses
from frog.observe.ask import ask_ranks

RANK = {"RANK": "0", "WORLD_SIZE": "1"}
PROGRAM = """
import sys, time
from pathlib import Path
def loop():
    while not Path("go").exists():
        time.sleep(0.01)
loop()
print(sys.argv)
sys.exit(3)
"""


def start(tmp_path: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    (tmp_path / "my.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, env={**os.environ, **RANK, **env}, stdout=subprocess.PIPE, text=True
    )


def is_in_loop(folder: Path) -> bool:
    status = read_statuses(folder, 0).get(0)
    return status is not None and status.line is not None and status.line.function == "loop"


def test_program_runs_with_observer_and_keeps_its_arguments_and_exit_code(tmp_path: Path) -> None:
    process = start(tmp_path, "-u", "-m", "frog.observe", "my.py", "--lr", "1")
    folder = tmp_path / "runs" / "my"
    try:
        wait_until(lambda: is_in_loop(folder), "the first status", process)
        shown = ask_ranks(str(folder))
        (tmp_path / "go").touch()
        out, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert (out, process.returncode) == ("['my.py', '--lr', '1']\n", 3)
    assert shown.startswith(f"rank 0: at {tmp_path}/my.py:")
    assert " in loop, after 0 collectives\n" in shown
    own = read_observed(folder)[0][0]
    assert own.stacks is not None
    assert own.stacks.reason == "user"
    assert ask_ranks(str(folder)).startswith("rank 0: ended, after 0 collectives")


def test_environment_file_observes_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["observe", "--env", "--dir", "my job"]) == 0
    (tmp_path / "frog.env").write_text(capsys.readouterr().out)
    script = f"set -a; . ./frog.env; set +a; {sys.executable} -c 'raise ValueError(1)'"
    subprocess.run(["sh", "-c", script], env={**os.environ, **RANK}, capture_output=True, timeout=LIMIT_S)
    error = read_observed(tmp_path / "my job")[0][0].error
    assert error is not None
    assert error.type == "ValueError"


def test_environment_file_also_simulates_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["observe", "--env", "--dir", "job", "--simulate-gpus", "2"]) == 0
    added = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    program = "import torch; print(torch.cuda.device_count()); 1 / 0"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **RANK, **added},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout == "2\n"
    error = read_observed(tmp_path / "job")[0][0].error
    assert error is not None
    assert error.type == "ZeroDivisionError"


def test_each_environment_has_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        main(["observe", "--env"])
    folders = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FROG_RUN_DIR")]
    assert folders == [f"FROG_RUN_DIR={tmp_path}/runs/{name}" for name in ("observed", "observed-2")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "observe needs a run, or --env"),
        (["x", "--env"], "observe needs a run, or --env"),
        (["x", "--dir", "y"], "--dir belongs to --env"),
        (["x", "--simulate-gpus", "2"], "--simulate-gpus belongs to --env"),
        (["x"], "x: no run folder here or under runs/"),
        (["empty"], "empty: no rank has written a status"),
    ],
    ids=str,
)
def test_mistake_is_an_error_with_a_hint(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "observed").mkdir(parents=True)
    assert main(["observe", *words]) == 2
    assert said in capsys.readouterr().err


def test_rank_without_a_sign_of_life_is_not_waited_for(tmp_path: Path) -> None:
    from core.runs.test_observed_files import STATUS, write

    write(tmp_path, "status.json", STATUS)
    shown = ask_ranks(str(tmp_path)).splitlines()[0]
    assert shown.startswith("rank 0: no sign of life for ")
    assert shown.endswith("; last at /home/me/train.py:12 in main, after 8 collectives")
    assert not (observed_folder(tmp_path) / "request.json").exists()


def test_module_of_the_observer_without_a_program_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-m", "frog.observe"], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: nothing to run")
