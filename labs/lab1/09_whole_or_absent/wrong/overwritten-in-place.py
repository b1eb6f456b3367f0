def save_checkpoint(folder, step, parts):
    for name, data in parts.items():
        (folder / f"{name}.bin").write_bytes(data)
    (folder / "step.txt").write_text(str(step))


def load_latest(folder):
    if not (folder / "step.txt").exists():
        return None
    step = int((folder / "step.txt").read_text())
    return step, {path.stem: path.read_bytes() for path in folder.glob("*.bin")}
