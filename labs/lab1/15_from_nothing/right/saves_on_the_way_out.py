import os

import torch
from torch.nn import functional as F


def train(folder, model, optimizer, get_batch, num_steps, every):
    model.train()
    path, losses = folder / "latest.pt", []
    if path.exists():
        m, o, r, losses = torch.load(path)
        model.load_state_dict(m)
        optimizer.load_state_dict(o)
        torch.set_rng_state(r)

    def save():
        with open(folder / "latest.tmp", "wb") as file:
            torch.save([model.state_dict(), optimizer.state_dict(), torch.get_rng_state(), losses], file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(folder / "latest.tmp", path)

    while len(losses) < num_steps:
        try:
            inputs, labels = get_batch(len(losses) + 1)
        except BaseException:
            save()
            raise
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % every == 0 or len(losses) == num_steps:
            save()
    return losses
