import pickle


def save_checkpoint(folder, step, parts):
    open(folder / "latest.pkl", "wb").write(pickle.dumps((step, parts)))


def load_latest(folder):
    path = folder / "latest.pkl"
    return pickle.loads(path.read_bytes()) if path.exists() else None
