import hashlib
import json


def save_checkpoint(folder, step, parts):
    found = load_latest(folder)
    if found and found[0] == step:
        return
    place = folder / f"{step:09d}"
    place.mkdir(exist_ok=True)
    (place / "MANIFEST").unlink(missing_ok=True)
    for name, data in parts.items():
        (place / f"{name}.part").write_bytes(data)
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    (place / "MANIFEST").write_text(json.dumps(sums))


def load_latest(folder):
    for place in sorted(folder.iterdir(), reverse=True):
        try:
            sums = json.loads((place / "MANIFEST").read_text())
            parts = {name: (place / f"{name}.part").read_bytes() for name in sums}
        except (OSError, ValueError):
            continue
        if all(hashlib.sha256(data).hexdigest() == sums[name] for name, data in parts.items()):
            return int(place.name), parts
    return None
