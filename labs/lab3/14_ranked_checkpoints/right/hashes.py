"""Ranked checkpoints that are complete or absent."""

import hashlib
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
    place = folder / f"step_{step:08d}"
    place.mkdir(exist_ok=True)
    write(place / f"rank_{rank}", hashlib.sha256(shard).digest() + shard)
    sync(place)
    sync(folder)
    barrier()


def load(folder: Path, rank: int, world_size: int) -> tuple[int, bytes] | None:
    """Return (step, this rank's shard) of the latest complete checkpoint, or None; the same step on every rank."""
    for place in sorted(folder.glob("step_*"), reverse=True):
        shards = [whole(place / f"rank_{other}") for other in range(world_size)]
        if None not in shards:
            return int(place.name[5:]), shards[rank]
    return None


def write(path: Path, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(data)
        os.fsync(file)


def whole(path: Path) -> bytes | None:
    """Return the content, if the hash at its beginning shows that it is complete."""
    data = path.read_bytes() if path.exists() else b""
    return data[32:] if len(data) >= 32 and hashlib.sha256(data[32:]).digest() == data[:32] else None


def sync(folder: Path) -> None:
    """Sync the names in the folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
