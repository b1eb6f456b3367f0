"""Checkpoints on disk: a folder each, which gets its name when it is whole."""

import os
import shutil
from pathlib import Path


def save_checkpoint(folder: Path, step: int, parts: dict[str, bytes]) -> None:
    """Write a checkpoint of several parts under `folder`: killed in the middle, it is whole or not there."""
    staging = folder / f".tmp-{step}"
    staging.mkdir()
    for name, data in parts.items():
        with open(staging / name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    staging.rename(folder / f"step-{step}")


def load_latest(folder: Path) -> tuple[int, dict[str, bytes]] | None:
    """Step and parts of the whole checkpoint with the largest step, or None if none exists."""
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    if not steps:
        return None
    found = folder / f"step-{max(steps)}"
    return max(steps), {path.name: path.read_bytes() for path in found.iterdir()}
