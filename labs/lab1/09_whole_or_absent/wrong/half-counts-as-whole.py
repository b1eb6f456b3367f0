def save_checkpoint(folder, step, parts):
    place = folder / f"step_{step:08d}"
    place.mkdir(exist_ok=True)
    for name, data in parts.items():
        (place / name).write_bytes(data)


def load_latest(folder):
    places = sorted(folder.glob("step_*"))
    if not places:
        return None
    return int(places[-1].name[5:]), {path.name: path.read_bytes() for path in places[-1].iterdir()}
