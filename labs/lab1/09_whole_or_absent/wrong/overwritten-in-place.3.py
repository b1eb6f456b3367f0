def save_checkpoint(folder, step, parts):
    place = folder / f"step_{step}"
    place.mkdir(exist_ok=True)
    for name, data in parts.items():
        (place / f"{name}.bin").write_bytes(data)
    (place / "DONE").write_text(" ".join(parts))


def load_latest(folder):
    done = [path.parent for path in folder.glob("step_*/DONE") if path.read_text()]
    if not done:
        return None
    latest = max(done, key=lambda path: int(path.name[5:]))
    names = (latest / "DONE").read_text().split()
    return int(latest.name[5:]), {name: (latest / f"{name}.bin").read_bytes() for name in names}
