"""Commands started with closed streams, a full disk behind their output, and bytes that are no text at their prompt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def shell(words: str, folder: Path, typed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """`words` in bash, where `frog` is this one; what both streams got together is in `stdout`."""
    script = f'frog() {{ "{sys.executable}" -m frog.cli "$@"; }}; cd "{folder}"; {words}'
    return subprocess.run(
        ["bash", "-c", script], input=typed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120
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
def test_streams_may_be_closed_or_full(words: str, code: int, said: bytes, tmp_path: Path) -> None:
    done = shell(words, tmp_path)
    assert (done.returncode, b"Traceback" in done.stdout) == (code, False), done.stdout
    assert said in done.stdout if said else done.stdout == b""


def test_a_program_that_is_started_does_not_write_into_the_next_file(tmp_path: Path) -> None:
    program = (
        "import os, subprocess; from frog.core.streams import make_streams_whole; make_streams_whole(); "
        "file = open('kept', 'w'); subprocess.run(['echo', 'stray'], check=True); print('stray'); os.write(1, b'stray')"
    )
    assert shell(f'"{sys.executable}" -c "{program}" >&-', tmp_path).returncode == 0
    assert (tmp_path / "kept").read_text() == ""


def test_the_demo_asks_again_after_bytes_that_are_no_text(tmp_path: Path) -> None:
    done = shell(f'PYTHONIOENCODING=utf-8:strict frog demo a --out "{tmp_path}/demo"', ROOT, b"\xff\xfe\nq\n")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(b"Enter: run it") == 2
