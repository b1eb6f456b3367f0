"""A training program that names no vendor, with the kernels of flash_attn, which is not installed."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from flash_attn.flash_attn_interface import flash_attn_func
from flash_attn.layers.rotary import apply_rotary_emb
from flash_attn.ops.triton.layer_norm import layer_norm_fn
from torch import nn

BATCH, LENGTH, HEADS, WIDTH = 2, 32, 4, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(HEADS * WIDTH))
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH, bias=False)

    def forward(self, x, cos, sin):
        y, total = layer_norm_fn(x, self.scale, None, residual=x, prenorm=True, residual_in_fp32=True)
        q, k, v = self.qkv(y).view(BATCH, LENGTH, 3, HEADS, WIDTH).unbind(2)
        q, k = (apply_rotary_emb(part, cos, sin) for part in (q, k))
        return flash_attn_func(q, k, v, causal=True).flatten(2) + total


def wait():
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        pass


with ThreadPoolExecutor() as threads:
    threads.submit(wait).result()  # as the pool of processes of a library waits for its results
assert torch.accelerator.is_available()
torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
device = torch.accelerator.current_accelerator()
dist.init_process_group(device_id=torch.device(f"{device}:{torch.accelerator.current_device_index()}"))
model = Model().to(device, torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
cos, sin = (torch.zeros(LENGTH, WIDTH // 2, dtype=torch.bfloat16, device=device) for _ in range(2))
begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
for step in range(3):
    x = torch.zeros(BATCH, LENGTH, HEADS * WIDTH, dtype=torch.bfloat16, device=device)
    begin.record()
    model(x, cos, sin).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    end.record()
    torch.accelerator.synchronize()
    milliseconds, num_bytes = begin.elapsed_time(end), torch.accelerator.max_memory_allocated()
    print(f"step {step} of {dist.get_world_size()} ranks on {device}: {milliseconds > 0}, {num_bytes}")
