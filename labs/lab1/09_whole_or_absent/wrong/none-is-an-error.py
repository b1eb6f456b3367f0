"""Checkpoints on disk."""

import os
import shutil
from pathlib import Path


def save_checkpoint(folder: Path, step: int, parts: dict[str, bytes]) -> None:
    """Write a checkpoint of several parts ("model", "optimizer", ...) under `folder`, which exists.

    A process that is killed in the middle leaves the earlier checkpoints intact, and this one complete or absent.
    Files left by a killed process must not disturb a later save, or become part of it. If `step` was saved before, that
    checkpoint may stay or be replaced; if a kill interrupts this, one of the two is complete.
    """
    staging = folder / f".tmp-{step}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    for name, data in parts.items():
        with open(staging / name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    staging.rename(folder / f"step-{step}")


def load_latest(folder: Path) -> tuple[int, dict[str, bytes]] | None:
    """Return step and parts of the complete checkpoint with the largest step, or None if none exists.

    The folder may be a copy, whose files have other modification times.
    """
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    found = folder / f"step-{max(steps)}"
    return max(steps), {path.name: path.read_bytes() for path in found.iterdir()}
