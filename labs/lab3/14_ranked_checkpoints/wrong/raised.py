"""Ranked checkpoints that are complete or absent."""

import json
import os
from collections.abc import Callable
from pathlib import Path


def save(folder: Path, step: int, rank: int, world_size: int, shard: bytes, barrier: Callable[[], None]) -> None:
    """Write this rank's shard of the checkpoint of a step into folder, which exists and is shared by all ranks.

    Every rank calls it. barrier() returns when all ranks have called it equally often. Any rank may be killed at any
    moment; all others then end at their next barrier. The machine may lose power, and with it data that is not synced.
    Until the new checkpoint is complete, load finds the previous one; when save has returned on all ranks, it finds the
    new one, even after a power cut. Files left by a killed save must not disturb a later one.
    """
    place = folder / f"step_{step}"
    if not place.exists():
        os.mkdir(place)
    write(place / f"rank_{rank}", shard)
    sync(folder)
    barrier()
    if rank == 0:
        write(place / "manifest.json", json.dumps({"step": step, "world_size": world_size}).encode())
    barrier()


def load(folder: Path, rank: int, world_size: int) -> tuple[int, bytes] | None:
    """Return (step, this rank's shard) of the latest complete checkpoint, or None; the same step on every rank."""
    steps = [int(path.parent.name.removeprefix("step_")) for path in folder.glob("step_*/manifest.json")]
    if not steps:
        return None
    return max(steps), (folder / f"step_{max(steps)}" / f"rank_{rank}").read_bytes()


def write(path: Path, data: bytes) -> None:
    """Write the file completely, or leave nothing under that name."""
    draft = path.with_name(f"{path.name}.draft")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Sync the names in the folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
