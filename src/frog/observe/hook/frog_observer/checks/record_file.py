"""`checks.jsonl`: what a rank records for `frog check`, line by line."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ..place import Place  # noqa: TID252 its absolute name differs below a launcher

NAME = "checks.jsonl"
_MOST_BYTES = 64 << 20


class RecordFile:
    """The file of one rank, made with its first line. `every`: the interval of sampled steps."""

    def __init__(self, place: Place, every: int) -> None:
        self._place, self._every = place, every
        self._file: Any = None
        self._bytes = 0

    def write(self, line: dict[str, Any]) -> bool:
        """Append a line; return False if nothing more can be written."""
        try:
            if self._file is None:
                os.makedirs(self._place.folder, exist_ok=True)
                path = os.path.join(self._place.folder, NAME)
                self._file = open(path, "w", encoding="ascii")  # noqa: SIM115 it lives as long as the process
                self._put(self._header())
            if self._bytes > _MOST_BYTES:
                self._put({"kind": "stopped", "why": f"the file has reached {_MOST_BYTES >> 20} MiB"})
                return False
            self._put(line)
            if line["kind"] != "step" or "gradients" in line:
                self.flush()
        except OSError as error:
            print(f"frog check records nothing more on rank {self._place.rank}: {error}", file=sys.stderr)
            return False
        return True

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _put(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":"))
        self._bytes += len(text) + 1
        self._file.write(text + "\n")

    def _header(self) -> dict[str, Any]:
        return {
            "kind": "start",
            "format": 1,
            "rank": self._place.rank,
            "world_size": self._place.world_size,
            "pid": os.getpid(),
            "every": self._every,
            "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
        }
