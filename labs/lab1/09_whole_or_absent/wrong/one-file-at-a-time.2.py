import os


def save_checkpoint(folder, step, parts):
    everything = {**parts, "step": str(step).encode()}
    for name, data in everything.items():
        with open(folder / (name + ".new"), "wb") as file:
            file.write(data)
    for name in everything:
        os.replace(folder / (name + ".new"), folder / (name + ".ckpt"))


def load_latest(folder):
    found = {path.stem: path.read_bytes() for path in folder.glob("*.ckpt")}
    if "step" not in found:
        return None
    return int(found.pop("step")), found
