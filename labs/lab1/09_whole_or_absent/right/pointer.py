import os
import shutil


def save_checkpoint(folder, step, parts):
    number = next(n for n in range(99) if load_place(folder) != f"data_{step}.{n}")
    place = folder / f"data_{step}.{number}"
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    for name in parts:
        (place / name).write_bytes(parts[name])
    (folder / "LATEST.tmp").write_text(place.name)
    os.replace(folder / "LATEST.tmp", folder / "LATEST")
    for other in folder.glob("data_*"):
        if other != place:
            shutil.rmtree(other)


def load_place(folder):
    return (folder / "LATEST").read_text() if (folder / "LATEST").exists() else None


def load_latest(folder):
    place = load_place(folder)
    if place is None:
        return None
    step = int(place.removeprefix("data_").split(".")[0])
    return step, {path.name: path.read_bytes() for path in (folder / place).iterdir()}
