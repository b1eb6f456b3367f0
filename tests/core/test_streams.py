"""Commands with closed streams, a full disk behind their output, or invalid bytes at their prompt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.core.errors import UsageError
from frog.train.finetune.classify import _lines_of_input

ROOT = Path(__file__).parents[2]


def shell(words: str, folder: Path, typed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run `words` in bash, where `frog` is this checkout's; both streams are in `stdout`."""
    script = f'frog() {{ "{sys.executable}" -m frog.cli "$@"; }}; cd "{folder}"; {words}'
    return subprocess.run(
        ["bash", "-c", script], input=typed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("frog slurm explain - <&-", 1, b"-: 1 trap"),
        ("frog data list >&-", 0, b""),
        ("frog data list >/dev/full", 1, b"No space left on device\n  try: "),
        ("frog slurm explain nothing 2>&-", 2, b""),
    ],
)
def test_command_works_with_closed_or_full_streams(words: str, code: int, said: bytes, tmp_path: Path) -> None:
    done = shell(words, tmp_path)
    assert (done.returncode, b"Traceback" in done.stdout) == (code, False), done.stdout
    assert said in done.stdout if said else done.stdout == b""


def test_child_process_does_not_write_into_the_next_opened_file(tmp_path: Path) -> None:
    program = (
        "import os, subprocess; from frog.core.terminal import make_streams_whole; make_streams_whole(); "
        "file = open('kept', 'w'); subprocess.run(['echo', 'stray'], check=True); print('stray'); os.write(1, b'stray')"
    )
    assert shell(f'"{sys.executable}" -c "{program}" >&-', tmp_path).returncode == 0
    assert (tmp_path / "kept").read_text() == ""


def test_demo_asks_again_after_invalid_bytes(tmp_path: Path) -> None:
    done = shell(f'PYTHONIOENCODING=utf-8:strict frog demo a --out "{tmp_path}/demo"', ROOT, b"\xff\xfe\nq\n")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(b"Enter: run it") == 2


def test_endless_line_is_not_an_answer(tmp_path: Path) -> None:
    done = shell("ulimit -v 4000000; frog quiz 1 < /dev/zero", tmp_path)
    assert (done.returncode, b"Traceback" in done.stdout) == (0, False), done.stdout


def test_endless_input_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/zero") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(UsageError, match="standard input has more than the maximum of 16777216 bytes"):
            list(_lines_of_input())


@pytest.mark.parametrize("command", ["quiz 1", "class x", "learn", "runs"])
def test_missing_current_directory_is_reported(command: str, tmp_path: Path) -> None:
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; frog {command}", tmp_path)
    assert (done.returncode, done.stdout) == (
        1,
        b"error: the current directory no longer exists\n  try: cd to an existing directory\n",
    )


def test_endless_invalid_answers_end_the_quiz(tmp_path: Path) -> None:
    done = shell("yes wrong | frog quiz 1", tmp_path)
    assert done.returncode == 0
    assert len(done.stdout) < 64 << 10
    assert b"\nno valid answer after 20 attempts: giving up\n" in done.stdout


@pytest.mark.parametrize("words", ["frog train $'\\xff'.toml", "frog run --nproc 1 -- train $'\\xff'.toml"])
def test_arguments_that_are_not_utf8_are_rejected(words: str, tmp_path: Path) -> None:
    done = shell(words, tmp_path)
    assert (done.returncode, done.stdout[:18]) == (2, b"error: not UTF-8: "), done.stdout
    assert b"\n  try: another name\n" in done.stdout


def test_file_names_that_are_not_utf8_are_reported(tmp_path: Path) -> None:
    done = shell(
        "mkdir texts; for n in 1 2 3; do seq 1000 >texts/$n$'\\xff'.txt; done; frog data prepare --corpus texts",
        tmp_path,
    )
    assert b"Traceback" not in done.stdout, done.stdout
