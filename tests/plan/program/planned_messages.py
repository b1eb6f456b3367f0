"""Two stages by hand: `send` and `recv` forward, after the shape, and `batch_isend_irecv` backward.

With the word `wait`, both ranks begin by waiting for the other.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LENGTH, MICRO = 64, 32, 3

dist.init_process_group("nccl")
rank, far = dist.get_rank(), dist.get_world_size() // 2
torch.cuda.set_device(rank % torch.cuda.device_count())
is_first = rank < far
peer = rank + far if is_first else rank - far
model = nn.Linear(WIDTH, WIDTH, bias=False).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if "wait" in sys.argv:
    dist.recv(torch.empty(1, device="cuda"), peer)
for step in range(100):
    outputs = []
    for _ in range(MICRO):
        if is_first:
            x = torch.randn(2, LENGTH, WIDTH, device="cuda")
            y = model(x)
            dist.send(torch.tensor(y.shape, device="cuda"), peer)
            dist.send(y.detach(), peer)
        else:
            shape = torch.empty(3, dtype=torch.int64, device="cuda")
            dist.recv(shape, peer)
            x = torch.empty(shape.tolist(), device="cuda", requires_grad=True)
            dist.recv(x, peer)
            y = model(x)
        outputs.append((x, y))
    for x, y in outputs:
        grad = torch.empty_like(y)
        if not is_first:
            y.sum().backward()
            grad = x.grad
        op = dist.irecv if is_first else dist.isend
        for work in dist.batch_isend_irecv([dist.P2POp(op, grad, peer)]):
            work.wait()
        if is_first:
            y.backward(grad)
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    print(f"rank {rank}, step {step} ended at {time.perf_counter()}")
    seen = [None]
    if is_first:
        dist.send_object_list([f"step {step} of rank {rank}"], peer)
    else:
        dist.recv_object_list(seen, peer)
        print(f"rank {rank} received {tuple(x.shape)}, {seen[0]}")
