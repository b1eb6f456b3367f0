import pickle


def save_checkpoint(folder, step, parts):
    with open(folder / "latest.pkl", "wb") as file:
        pickle.dump({"step": step, "parts": parts}, file)


def load_latest(folder):
    try:
        with open(folder / "latest.pkl", "rb") as file:
            data = pickle.load(file)
    except FileNotFoundError:
        return None
    return data["step"], data["parts"]
