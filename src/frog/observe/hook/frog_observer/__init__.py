"""Record what a rank does, in small files that other processes read. Changes nothing in what the program does.

`install()` runs before the program's first line, in every Python process below a launcher. It starts the observer only
in the ranks themselves. See docs/observe/run-folder.md for the files.
"""

from __future__ import annotations

import os
import re
import sys

from .place import after_earlier_starts, find_place

_ENTRIES = "2000"


def install() -> None:
    """Start the observer if this process is a rank."""
    place = find_place(os.environ, os.getpid())
    if place is None:
        return
    place = after_earlier_starts(place)
    os.environ["FROG_OBSERVED_PID"] = place.mark
    dumps = os.path.join(os.path.dirname(place.folder), "nccl_trace_rank_")  # torch appends the rank
    for name, value in _recorder_settings(_torch_version(sys.path), dumps).items():
        os.environ.setdefault(name, value)
    from .beat import Beats

    Beats(place).start()


def _recorder_settings(torch: tuple[int, int], dumps: str) -> dict[str, str]:
    """Return settings of torch's flight recorder, unless the user has chosen others. It warns about old names."""
    old = torch < (2, 8)
    return {
        "TORCH_NCCL_TRACE_BUFFER_SIZE" if old else "TORCH_FR_BUFFER_SIZE": _ENTRIES,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" if old else "TORCH_FR_DUMP_TEMP_FILE": dumps,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }


def _torch_version(path: list[str]) -> tuple[int, int]:
    """Return the version of the torch that the program would import, without importing it; (9, 9) if unknown."""
    for entry in path:
        try:
            with open(os.path.join(entry, "torch", "version.py"), encoding="utf-8") as file:
                match = re.search(r"__version__ = '(\d+)\.(\d+)", file.read(4096))
        except (OSError, ValueError):
            continue
        if match:
            return int(match[1]), int(match[2])
    return 9, 9
