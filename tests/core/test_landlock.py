"""Landlock against the real kernel: what a process gave up fails, and the rest works as before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from frog.core.landlock import landlock_version

CONFINED = """
import ctypes, os, sys
from pathlib import Path
from frog.core.landlock import allow_writes_only_below

own, other = map(Path, sys.argv[1:])
assert allow_writes_only_below([own, Path("/dev/null"), own / "not there"])

def result(action):
    try:
        action()
    except OSError as error:
        return error.strerror
    return "done"

(own / "a").mkdir()
(own / "a" / "file").write_text("1")
(own / "a" / "file").rename(own / "file")
print("own:", sorted(path.name for path in own.iterdir()), result(lambda: Path("/dev/null").write_text("x")))
print("read:", (other / "file").read_text())
print("write:", result(lambda: (other / "file").write_text("x")))
print("create:", result(lambda: (other / "new").touch()))
print("remove:", result((other / "file").unlink))
print("shorten:", result(lambda: os.truncate(other / "file", 0)))
print("move:", result(lambda: (own / "file").rename(other / "moved")))
print("in C:", ctypes.CDLL(None).unlink(bytes(other / "file")))
print("a child:", os.spawnlp(os.P_WAIT, "rm", "rm", "-f", str(other / "file")))
print("signals:", result(lambda: os.kill(os.getppid(), 0)), result(lambda: os.kill(os.getpid(), 0)))
"""


@pytest.mark.skipif(landlock_version() < 6, reason="needs Landlock of Linux 6.12")
def test_confined_process_changes_files_below_its_places_only(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    (other / "file").write_text("untouched")
    ended = subprocess.run([sys.executable, "-c", CONFINED, own, other], capture_output=True, text=True, timeout=60)
    refused = "Permission denied"
    assert ended.stdout.splitlines() == [
        "own: ['a', 'file'] done",
        "read: untouched",
        f"write: {refused}",
        f"create: {refused}",
        f"remove: {refused}",
        f"shorten: {refused}",
        f"move: {refused}",
        "in C: -1",
        "a child: 1",
        "signals: Operation not permitted done",
    ], ended.stderr
    assert [(path.name, path.read_text()) for path in other.iterdir()] == [("file", "untouched")]


def test_system_without_landlock_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert landlock_version() == 0
