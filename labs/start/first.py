"""Train a copy of one model on each rank, with data of its own."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # the same first weights on every rank
model = torch.nn.Linear(4, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.randn(64, 4)
num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4

for step in range(num_steps):
    start = 8 * step % 64
    samples = torch.arange(start + rank, start + 8, world_size)
    inputs = data[samples]
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    gradient = model.weight.grad
    dist.all_reduce(gradient)
    gradient /= world_size
    optimizer.step()
    optimizer.zero_grad()
    weight = model.weight[0, 0].item()
    numbers = f"loss {loss.item():.4f}  weight {weight:.6f}"
    print(f"step {step + 1}  samples {samples.tolist()}  {numbers}")
    time.sleep(0.25)  # so that you can watch it

dist.destroy_process_group()
