import os

import torch
from torch.nn import functional as F


class Run:
    def __init__(self, folder, model, optimizer):
        self.file, self.model, self.optimizer, self.losses = folder / "run.pt", model, optimizer, []

    def load(self):
        try:
            state = torch.load(self.file)
        except FileNotFoundError:
            return
        self.losses = state["losses"].tolist()
        torch.set_rng_state(state["rng"])
        self.optimizer.load_state_dict(state["o"])
        self.model.load_state_dict(state["m"])

    def save(self):
        losses = torch.tensor(self.losses, dtype=torch.float64)
        state = dict(m=self.model.state_dict(), o=self.optimizer.state_dict(), rng=torch.get_rng_state(), losses=losses)
        with open(self.file.with_suffix(".new"), "wb") as file:
            torch.save(state, file)
        os.rename(self.file.with_suffix(".new"), self.file)


def train(folder, model, optimizer, get_batch, num_steps, every):
    run = Run(folder, model, optimizer)
    run.load()
    while (step := len(run.losses) + 1) <= num_steps:
        x, y = get_batch(step)
        model.train()
        scores = model(x)
        loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.losses.append(loss.item())
        if step % every == 0 or step == num_steps:
            run.save()
    return run.losses
