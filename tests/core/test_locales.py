"""Other locales than UTF-8, and long names of the folder for temporary files."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.core.console import console
from frog.core.files import socket_name

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
JOB = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=1:00:00\npython train.py # größe →\n"


def run_in_ascii(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "frog", *words]
    environment = {**os.environ, **ASCII}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def test_commands_read_utf8_files_in_a_locale_without_utf8(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(JOB, encoding="utf-8")
    explained = run_in_ascii(tmp_path, "slurm", "explain", "job.sh")
    assert (explained.returncode, explained.stderr) == (0, "")
    assert "gr\\xf6\\xdfe" in explained.stdout
    course = run_in_ascii(tmp_path, "learn", "init", "course")
    assert (course.returncode, course.stderr) == (0, "")
    listed = run_in_ascii(tmp_path / "course", "learn", "list")
    assert (listed.returncode, listed.stderr) == (0, "")


def test_a_name_that_the_locale_cannot_write_leads_to_the_locale(tmp_path: Path) -> None:
    done = run_in_ascii(tmp_path, "report", "größe")
    assert done.returncode == 2
    assert "try: export LC_ALL=C.UTF-8; unset PYTHONUTF8" in done.stderr


def test_programs_of_the_user_keep_their_locale(tmp_path: Path) -> None:
    program = "import frog, locale; print(locale.getencoding())"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **ASCII}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout.strip().upper() not in ("UTF-8", "UTF8")


def test_tables_escape_what_the_stream_cannot_show(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    console().print("größe")
    stream.flush()
    assert stream.buffer.getvalue() == b"gr\\xf6\\xdfe\n"  # type: ignore[attr-defined]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs descriptors as files")
def test_a_socket_in_a_folder_with_a_long_name_is_bound_and_connected(tmp_path: Path) -> None:
    path = tmp_path / ("t" * 150) / "sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        with socket_name(path) as name:
            listener.bind(name)
        listener.listen()
        assert path.is_socket()
        with socket_name(path) as name:
            other.connect(name)
        accepted, _ = listener.accept()
        accepted.close()
