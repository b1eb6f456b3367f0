"""Ranked checkpoints that are whole or not there."""

import os
from collections.abc import Callable
from pathlib import Path


def save(folder: Path, step: int, rank: int, world_size: int, shard: bytes, barrier: Callable[[], None]) -> None:
    """Write this rank's shard of the checkpoint of a step into folder, which all ranks share and which exists.

    Every rank calls it. barrier() returns when all ranks have called it as often. Any rank may be killed at any moment,
    and all others then end at their next barrier; the machine may lose its power, and with it what was not synced.
    Until the new checkpoint is whole, load finds the one before; when save has returned on all ranks, it finds the new
    one, also after a power cut. What a killed save has left must not disturb a later one.
    """
    path = folder / f"{step}-{rank}.shard"
    with open(path, "wb") as file:
        file.write(shard)
        file.flush()
        os.fsync(file.fileno())
    sync(folder)
    barrier()
    if rank == 0:
        with open(folder / "latest.new", "w") as file:
            file.write(str(step))
            file.flush()
            os.fsync(file.fileno())
        os.rename(folder / "latest.new", folder / "latest")
        sync(folder)
    barrier()
    for other in folder.glob(f"*-{rank}.shard"):
        if other != path:
            other.unlink()


def load(folder: Path, rank: int, world_size: int) -> tuple[int, bytes] | None:
    """(step, this rank's shard) of the latest whole checkpoint; None if there is none. The same step on every rank."""
    if not (folder / "latest").exists():
        return None
    step = int((folder / "latest").read_text())
    return step, (folder / f"{step}-{rank}.shard").read_bytes()


def sync(folder: Path) -> None:
    """The names in it are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
