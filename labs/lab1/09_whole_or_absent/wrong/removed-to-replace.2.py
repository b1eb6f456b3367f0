import os
import shutil


def save_checkpoint(folder, step, parts):
    tmp = folder / "tmp"
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir()
    for name, data in parts.items():
        (tmp / name).write_bytes(data)
    final, old = folder / f"step_{step}", folder / "old"
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.rename(final, old)
    os.rename(tmp, final)
    shutil.rmtree(old, ignore_errors=True)


def load_latest(folder):
    steps = [int(path.name[5:]) for path in folder.glob("step_*")]
    if not steps:
        return None
    return max(steps), {path.name: path.read_bytes() for path in (folder / f"step_{max(steps)}").iterdir()}
