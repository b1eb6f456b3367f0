import os
import shutil


def save_checkpoint(folder, step, parts):
    place = folder / f"data_{step}"
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    for name in parts:
        (place / name).write_bytes(parts[name])
    (folder / "LATEST.tmp").write_text(str(step))
    os.replace(folder / "LATEST.tmp", folder / "LATEST")
    for other in folder.glob("data_*"):
        if other != place:
            shutil.rmtree(other)


def load_latest(folder):
    if not (folder / "LATEST").exists():
        return None
    step = int((folder / "LATEST").read_text())
    return step, {path.name: path.read_bytes() for path in (folder / f"data_{step}").iterdir()}
