import hashlib
import json
import os
import re
import shutil


def _sync_dir(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(path, data):
    with open(path, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def save(folder, step, rank, world_size, shard, barrier):
    work = folder / f"step_{step}.tmp"
    final = folder / f"step_{step}"
    barrier()
    if rank == 0:
        work.mkdir()
    barrier()
    _write(work / f"rank_{rank}", shard)
    barrier()
    if rank == 0:
        _sync_dir(work)
        if final.exists():
            shutil.rmtree(final)
        os.replace(work, final)
        _sync_dir(folder)
    barrier()


def load(folder, rank, world_size):
    steps = [int(p.name[5:]) for p in folder.iterdir() if re.fullmatch(r"step_\d+", p.name)]
    if not steps:
        return None
    step = max(steps)
    return step, (folder / f"step_{step}" / f"rank_{rank}").read_bytes()
