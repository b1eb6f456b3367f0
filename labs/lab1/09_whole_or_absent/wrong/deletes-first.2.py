import os
import pickle


def save_checkpoint(folder, step, parts):
    with open(folder / "new.tmp", "wb") as file:
        pickle.dump((step, parts), file)
    if (folder / "checkpoint").exists():
        os.remove(folder / "checkpoint")
    os.rename(folder / "new.tmp", folder / "checkpoint")


def load_latest(folder):
    try:
        return pickle.loads((folder / "checkpoint").read_bytes())
    except FileNotFoundError:
        return None
