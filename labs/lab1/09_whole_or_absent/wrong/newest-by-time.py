"""Checkpoints on disk."""

import os
import shutil
from pathlib import Path



def save_checkpoint(folder: Path, step: int, parts: dict[str, bytes]) -> None:
    final, temporary = folder / f"step_{step}", folder / f"temporary_{step}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for name, data in parts.items():
        (temporary / name).write_bytes(data)
    if final.exists():
        shutil.rmtree(temporary)
    else:
        os.rename(temporary, final)


def load_latest(folder: Path) -> tuple[int, dict[str, bytes]] | None:
    found = sorted(folder.glob("step_*"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        return None
    return int(found[-1].name.removeprefix("step_")), {path.name: path.read_bytes() for path in found[-1].iterdir()}
