"""What the launcher writes to the run folder: its own events, and all records of a third-party program.

The launcher writes its events to the folder as soon as it exists. A program that is not Frog's does not know of its run
folder, so the launcher also creates that folder, with run.json, the logs of its ranks and record.json.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import frog
from frog.core.env import launch_variables
from frog.core.errors import HangError, LaunchError, signal_name
from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import LAUNCHER_FIELDS
from frog.core.runs.outcome import Failure, first_failure
from frog.core.runs.record import FORMAT
from frog.core.units import now_text
from frog.launch.program import RankProgram
from frog.launch.rank_output import RankOutput


class Journal:
    """Records the launcher's events. Buffers them until there is a run folder.

    folder: the run folder, if the launcher creates it. A folder that the ranks choose replaces it, and receives all
    events.
    """

    def __init__(self, scratch: Path, folder: RunFolder | None = None) -> None:
        self._pointer = scratch / "run_folder"
        self._lines: list[str] = []
        self._num_written = 0
        self.folder = folder
        self.is_chosen = False
        """True if the ranks have chosen the folder."""

    def look_for_folder(self) -> RunFolder | None:
        """Return the run folder if there is one, and write the buffered lines to it."""
        if not self.is_chosen and self._pointer.exists():
            self.folder, self.is_chosen = RunFolder(Path(self._pointer.read_text())), True
            self._num_written = 0
        self._write()
        return self.folder

    def record(self, event: str, unix_ns: int | None = None, **fields: Any) -> None:
        """Write one event. Raises ValueError if its fields differ from the schema."""
        if fields.keys() != set(LAUNCHER_FIELDS[event]):
            raise ValueError(f"{event}: fields {sorted(fields)}, the schema has {sorted(LAUNCHER_FIELDS[event])}")
        self._lines.append(json.dumps({"event": event, "unix_ns": unix_ns or time.time_ns(), **fields}) + "\n")
        self.look_for_folder()

    def _write(self) -> None:
        """Write the buffered lines; on a full disk keep them, since the ranks will report that error."""
        waiting = self._lines[self._num_written :]
        if self.folder is None or not waiting:
            return
        with contextlib.suppress(OSError):
            self.folder.events.mkdir(parents=True, exist_ok=True)
            with open(self.folder.launcher_events, "ab+", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                # A killed launcher or a full disk may have left an incomplete line.
                torn = size and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
                lines = (b"\n" if torn else b"") + "".join(waiting).encode()
                if file.write(lines) < len(lines):
                    os.ftruncate(file.fileno(), size)
                    return
            self._num_written = len(self._lines)


_SIGN_S = 10.0
"""Interval at which the launcher touches its events, so that readers know that it is alive."""
_MOST_MESSAGE = 4_000
_PACKAGES = ("torch", "numpy", "transformers", "accelerate", "deepspeed", "lightning", "datasets")


class RecordedProgram:
    """A program's run folder and output, from its start to its end."""

    def __init__(self, program: RankProgram, folder: RunFolder | None) -> None:
        self.program, self.folder = program, folder
        self.output = RankOutput(folder)
        self._began_s = self._signed_s = time.monotonic()

    @classmethod
    def create(cls, program: RankProgram, runs: Path, environment: Mapping[str, str]) -> RecordedProgram:
        """Create the run folder `runs/NAME`, or `runs/NAME-2` and so on if it exists.

        A folder that cannot be written does not prevent the run: a warning says so.
        """
        try:
            folder = RunFolder(new_folder(runs, program.name))
            write_json(folder.run_json, _run_file(program, folder, environment))
        except OSError as error:
            print(f"no run folder: {runs}: {error.strerror}", file=sys.stderr, flush=True)
            return cls(program, None)
        print(f"run folder: {folder.path}", file=sys.stderr, flush=True)
        return cls(program, folder)

    def sign(self) -> None:
        """Show readers of the folder that the launcher is alive."""
        if self.folder is not None and time.monotonic() - self._signed_s > _SIGN_S:
            self._signed_s = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.folder.launcher_events)

    def write_record(self, error: LaunchError | None, failures: list[Failure], interrupted: bool) -> None:
        """Write record.json at the end."""
        status = "completed"
        if error is not None:
            status = "interrupted" if interrupted else "failed"
        first = first_failure(failures) if failures and not isinstance(error, HangError) else None
        record = {
            "format": FORMAT,
            "status": status,
            "step": 0,
            "error": None if error is None or interrupted else _recorded_error(error, first),
            "ended": now_text(),
            "wall_s": round(time.monotonic() - self._began_s, 3),
        }
        if self.folder is not None:
            with contextlib.suppress(OSError):  # the disk is full
                write_json(self.folder.record_json, record)


def _recorded_error(error: LaunchError, first: Failure | None) -> dict[str, object]:
    """Return the error of the rank that failed first; of the launcher if no rank failed."""
    if first is None:
        return {"type": type(error).__name__, "message": error.what[:_MOST_MESSAGE], "rank": 0, "step": 0}
    report, code = first["error"] or {}, first["code"]
    kind = report.get("type") or (signal_name(-code) if code < 0 else f"exit code {code}")
    message = report.get("message") or ("" if report else first["traceback"] or "")
    return {"type": kind, "message": message[:_MOST_MESSAGE], "rank": first["rank"], "step": 0}


def new_folder(runs: Path, name: str) -> Path:
    """Create and return `runs/NAME`, or `runs/NAME-2` and so on if it exists."""
    runs.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = runs / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
        number += 1


def _run_file(program: RankProgram, folder: RunFolder, environment: Mapping[str, str]) -> dict[str, object]:
    return {
        "format": FORMAT,
        "name": folder.path.name,
        "created": now_text(),
        "argv": list(sys.argv),
        "config": {},
        "num_parameters": 0,
        "data": None,
        "versions": {"frog": frog.__version__, "python": platform.python_version(), **_versions()},
        "segments": [],
        "program": {
            "command": list(program.words),
            "kind": program.kind,
            "cwd": str(Path.cwd()),
            "environment": launch_variables(environment),
        },
    }


def _versions() -> dict[str, str]:
    """Return the versions of the libraries that are installed next to Frog."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
