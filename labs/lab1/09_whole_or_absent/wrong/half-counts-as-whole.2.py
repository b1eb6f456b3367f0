def save_checkpoint(folder, step, parts):
    place = folder / f"step_{step:08d}"
    place.mkdir(exist_ok=True)
    (place / "DONE").write_text("\n".join(parts))
    for name, data in parts.items():
        (place / f"{name}.bin").write_bytes(data)


def load_latest(folder):
    for place in sorted(folder.glob("step_*"), reverse=True):
        if (place / "DONE").exists():
            return int(place.name[5:]), {path.stem: path.read_bytes() for path in place.glob("*.bin")}
    return None
