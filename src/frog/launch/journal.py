"""The launcher's events, written to the run folder as soon as it exists."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import LAUNCHER_FIELDS


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
