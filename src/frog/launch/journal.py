"""The launcher's own events, in the run folder as soon as there is one."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from frog.runs.folder import RunFolder
from frog.runs.launcher_schema import LAUNCHER_FIELDS


class Journal:
    """Collects what the launcher sees. The ranks choose the run folder; until then lines wait."""

    def __init__(self, scratch: Path) -> None:
        self._pointer = scratch / "run_folder"
        self._waiting: list[str] = []
        self.folder: RunFolder | None = None

    def look_for_folder(self) -> RunFolder | None:
        """The run folder, once rank 0 has chosen it; what has waited is written there."""
        if self.folder is None and self._pointer.exists():
            self.folder = RunFolder(Path(self._pointer.read_text()))
        self._write()
        return self.folder

    def record(self, event: str, unix_ns: int | None = None, **fields: Any) -> None:
        """Write one event. Raises ValueError if its fields are not those of the schema."""
        if fields.keys() != set(LAUNCHER_FIELDS[event]):
            raise ValueError(f"{event}: fields {sorted(fields)}, the schema has {sorted(LAUNCHER_FIELDS[event])}")
        self._waiting.append(json.dumps({"event": event, "unix_ns": unix_ns or time.time_ns(), **fields}) + "\n")
        self.look_for_folder()

    def _write(self) -> None:
        """Write what waits; on a full disk it goes on waiting, since the ranks' own words are still to come."""
        if self.folder is None or not self._waiting:
            return
        with contextlib.suppress(OSError):
            self.folder.events.mkdir(parents=True, exist_ok=True)
            with open(self.folder.launcher_events, "ab+", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                # A launcher that was killed, or a disk that was full, left half a line.
                torn = size and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
                lines = (b"\n" if torn else b"") + "".join(self._waiting).encode()
                if file.write(lines) < len(lines):
                    os.ftruncate(file.fileno(), size)
                    return
            self._waiting.clear()
