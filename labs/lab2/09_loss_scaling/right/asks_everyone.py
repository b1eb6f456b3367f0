"""Unscale gradients before averaging them, and agree on the decision in a separate collective."""

import torch
import torch.distributed as dist


class LossScaler:
    def __init__(self, scale=65536.0, growth_interval=2000):
        self.scale, self.growth_interval = scale, growth_interval
        self.history = []

    def update(self, overflowed):
        self.history.append(not overflowed)
        if overflowed:
            self.scale, self.history = self.scale * 0.5, []
        elif len(self.history) >= self.growth_interval:
            self.scale, self.history = self.scale * 2.0, []


def train_step(model, scaler, loss, max_norm, rate):
    gradients = torch.autograd.grad(loss * scaler.scale, list(model.parameters()))
    gradients = [g / scaler.scale for g in gradients]
    bad = torch.tensor(float(any(not torch.isfinite(g).all() for g in gradients)))
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    for g in gradients:
        dist.all_reduce(g)
        g.div_(dist.get_world_size())
    moves = bad.item() == 0
    if moves:
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        factor = min(1.0, max_norm / (norm.item() + 1e-6))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients):
                p.sub_(g * factor, alpha=rate)
    scaler.update(not moves)
    return moves
