import json
import os


def _sync_dir(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _write(path, data):
    tmp = path.with_name(path.name + ".tmp")
    with open(tmp, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(tmp, path)


def save(folder, step, rank, world_size, shard, barrier):
    for p in folder.glob(f"*-{rank}"):
        p.unlink()
    _write(folder / f"{step}-{rank}", shard)
    _sync_dir(folder)
    barrier()
    if rank == 0:
        _write(folder / "latest", str(step).encode())
        _sync_dir(folder)
    barrier()


def load(folder, rank, world_size):
    try:
        step = int((folder / "latest").read_text())
    except FileNotFoundError:
        return None
    return step, (folder / f"{step}-{rank}").read_bytes()
