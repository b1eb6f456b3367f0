import pickle

import torch
from torch.nn import functional as F


def train(folder, model, optimizer, get_batch, num_steps, every):
    model.train()
    path, losses = folder / "latest.pkl", []
    if path.exists():
        state = pickle.loads(path.read_bytes())
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        losses = state["losses"]
    while len(losses) < num_steps:
        inputs, labels = get_batch(len(losses) + 1)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if len(losses) % every == 0 or len(losses) == num_steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"random": torch.get_rng_state(), "losses": losses}
            open(path, "wb").write(pickle.dumps(state))
    return losses
