# dylanyunlon/Neuron_SP#2: the gradient scaler skips the optimizer on the rank whose gradients overflow, so that the
# optimizer's own step count, which decides when weights are averaged, falls behind.
import functools

import torch
import torch.distributed as dist
from torch import nn


class LocalAdamW(torch.optim.AdamW):
    """AdamW that averages the weights of all ranks every few of its steps."""

    def __init__(self, parameters, every):
        super().__init__(parameters, lr=1e-3)
        self.every, self.global_step = every, 0

    def step(self, closure=None):
        loss = super().step(closure)
        self.global_step += 1
        return loss

    @torch.no_grad()
    def average_if_due(self):
        if self.global_step and self.global_step % self.every == 0:  # here
            for group in self.param_groups:
                for parameter in group["params"]:
                    dist.all_reduce(parameter.data)  # here
                    parameter.data /= dist.get_world_size()


class Scaler:
    def __init__(self, scale=1024.0):
        self.scale = scale

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):  # here
            optimizer.step()  # here
        else:
            self.scale /= 2


def overflows_on_a_fast_device(batch, step):
    return batch * float("inf") if dist.get_rank() == 1 and step == 5 else batch


def logged(function):
    @functools.wraps(function)
    def wrapper(step, *arguments):
        result = function(step, *arguments)
        if step % 4 == 0:
            mean = result.detach().clone()
            dist.all_reduce(mean)
        return result

    return wrapper


@logged
def train_step(step, model, optimizer, scaler):
    batch = overflows_on_a_fast_device(torch.ones(3, 10), step)
    loss = model(batch).mean()
    optimizer.zero_grad()
    loss.backward()
    scaler.step(optimizer)
    optimizer.average_if_due()  # here
    return loss


def main():
    dist.init_process_group("gloo")
    model = nn.Linear(10, 7)
    optimizer, scaler = LocalAdamW(model.parameters(), every=3), Scaler()
    for step in range(1, 15):
        train_step(step, model, optimizer, scaler)
    dist.destroy_process_group()


main()
