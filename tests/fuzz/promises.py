"""Frog's promises for any input: about its output, about written and kept files, and that no value is a command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sandbox import Sandbox

MOST_OUTPUT = 64 << 10
_BIDI = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def check_output(data: bytes) -> str | None:
    """Return the problem with the output, or None."""
    if len(data) > MOST_OUTPUT:
        return f"{len(data)} bytes of output: {data[:300]!r}"
    text = data.decode(errors="surrogateescape")
    bad = next((place for place, char in enumerate(text) if _steers(char)), None)
    if bad is not None:
        return f"raw {text[bad]!r} on the terminal: {text[max(0, bad - 80) : bad + 80]!r}"
    if "Traceback (most recent call last)" in text:
        return f"a traceback: {text[-1500:]}"
    return None


def _steers(char: str) -> bool:
    """True if a character controls a terminal or reorders its text."""
    return (char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cs")) or char in _BIDI


def check_kept(
    sandbox: Sandbox,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    writes: tuple[str, ...],
    failed: bool,
    spoiled: tuple[str, bytes],
) -> Iterator[str]:
    """Yield files written outside the command's paths, and lost files.

    `before` and `after` are results of `Sandbox.look`, `writes` are path prefixes, `spoiled` is the damaged file and
    its damaged content.
    """
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    stray = [name for name in changed if not name.startswith(writes)]
    if stray:
        yield f"wrote outside of {writes}: {stray[:3]}"
    for name in changed:
        data = spoiled[1] if name == spoiled[0] else sandbox.original(name)
        path = sandbox.folder / name
        if name not in before or not data or (path.is_file() and path.read_bytes() == data):
            continue
        if name == "course/progress.json":
            if not _is_progress(path) or not _is_progress(data):
                yield f"{name} is lost"
        elif name.startswith("course/"):
            if not name.endswith(".md") and not _is_kept(sandbox.folder / "course", data):
                yield f"{name}: the learner's work is lost"
        elif failed and not name.endswith(_OF_AN_ATTEMPT):
            yield f"{name} was changed by a command that failed"
        elif name.endswith("/record.json") and b'"completed"' in data and b'"completed"' not in path.read_bytes():
            yield f"{name}: a completed run is {path.read_bytes()[:200]!r}"


_OF_AN_ATTEMPT = ("attempt.json", "train.log", "rank_0.jsonl", "heartbeats/rank_0.json", ".verified.json", "logs")
"""Files that a failing command may change: reports of the failure, and earlier results."""


def _is_progress(file: Path | bytes) -> bool:
    from frog.core.errors import FrogError
    from frog.core.schema import decode, read_typed
    from frog.learn.progress import Progress

    try:
        read_typed(file, Progress) if isinstance(file, Path) else decode(file, Progress, "")
    except (FrogError, OSError):
        return False
    return True


def _is_kept(folder: Path, data: bytes) -> bool:
    return any(path.read_bytes() == data for path in (folder / "backups").rglob("*") if path.is_file())


written: list[str] = []
"""Paths that this process opened for writing, created, moved or removed since the list was cleared."""

_WRITES = {
    "os.mkdir": 0,
    "os.rename": 1,
    "os.remove": 0,
    "os.rmdir": 0,
    "os.symlink": 1,
    "os.link": 1,
    "os.truncate": 0,
}


def hear(event: str, args: tuple[Any, ...]) -> None:
    """Record an event in `written`, as an audit hook."""
    if event == "open" and isinstance(args[0], str | bytes):
        mode, flags = args[1], args[2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (mode is None and flags & (os.O_WRONLY | os.O_RDWR)):
            written.append(os.fsdecode(args[0]))
    elif event in _WRITES and isinstance(args[_WRITES[event]], str | bytes | os.PathLike):
        written.append(os.fsdecode(args[_WRITES[event]]))


_SCRATCH = os.path.join(tempfile.gettempdir(), "")


def is_allowed(path: str, folder: Path) -> bool:
    """True if a path is in the sandbox, in one of Frog's scratch folders, or a device."""
    real = os.path.realpath(path)
    allowed = (f"{folder}/", "/dev/", "/proc/self", f"{_SCRATCH}frog", f"{_SCRATCH}torchinductor")
    return real.startswith(allowed) or "/__pycache__/" in f"{real}/" or real == str(folder)


_SHELL = """\
command_not_found_handle() { return 0; }
exit() { return 0; }
"""
_ALLOCATION = {
    "PATH": "/nowhere", "SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "n1", "USER": "me",
    "SLURM_CPUS_PER_TASK": "1", "SLURM_SUBMIT_DIR": ".", "SLURM_NODEID": "0", "SLURM_PROCID": "0",
}  # fmt: skip


def run_job(job: bytes, folder: Path) -> None:
    """Run a job file in a shell that finds no programs, so that only commands from injected values run."""
    env = {**_ALLOCATION, "EVIL": os.environ["EVIL"]}
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["/bin/bash"], input=_SHELL.encode() + job, env=env, cwd=folder, capture_output=True, timeout=10)
