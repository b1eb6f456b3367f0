"""Record what a rank does, in small files that other processes read. Changes nothing in the program.

`install()` runs before the program's first line, in every Python process below a launcher. It starts the observer only
in the ranks themselves. See docs/run-folder.md for the files.
"""

from __future__ import annotations

import os

from .place import find_place

_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",  # its name before torch 2.7
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Settings of torch's flight recorder, unless the user has chosen others."""


def install() -> None:
    """Start the observer if this process is a rank."""
    place = find_place(os.environ, os.getpid())
    if place is None:
        return
    os.environ["FROG_OBSERVED_PID"] = place.mark
    for name, value in _RECORDER.items():
        os.environ.setdefault(name, value)
    dump = os.path.join(os.path.dirname(place.folder), "nccl_trace_rank_")  # torch appends the rank
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        os.environ.setdefault(name, dump)
    from .beat import Beats

    Beats(place).start()
