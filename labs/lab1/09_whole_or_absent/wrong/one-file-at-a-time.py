import os


def write(path, data):
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def save_checkpoint(folder, step, parts):
    for name, data in parts.items():
        write(folder / f"{name}.bin", data)
    write(folder / "step.txt", str(step).encode())


def load_latest(folder):
    if not (folder / "step.txt").exists():
        return None
    step = int((folder / "step.txt").read_text())
    return step, {path.stem: path.read_bytes() for path in folder.glob("*.bin")}
