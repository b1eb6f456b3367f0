"""Ranked checkpoints that are whole or not there."""

import hashlib
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
    place = folder / f"step_{step:08d}"
    place.mkdir(exist_ok=True)
    write(place / f"rank_{rank}", hashlib.sha256(shard).digest() + shard)
    sync(place)
    sync(folder)
    barrier()


def load(folder: Path, rank: int, world_size: int) -> tuple[int, bytes] | None:
    """(step, this rank's shard) of the latest whole checkpoint; None if there is none. The same step on every rank."""
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
    """Its content, if the hash at its beginning says that this is all of it."""
    data = path.read_bytes() if path.exists() else b""
    return data[32:] if len(data) >= 32 and hashlib.sha256(data[32:]).digest() == data[:32] else None


def sync(folder: Path) -> None:
    """The names in it are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
