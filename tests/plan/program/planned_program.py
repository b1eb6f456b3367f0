"""A training program for CUDA and NCCL, small: `planned_program.py ddp`, `fsdp`, `fsdp1` or `tp`, and words below."""

import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS, VOCAB, LENGTH, BATCH, HEADS = 64, 3, 512, 32, 2, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return checkpoint(self.compute, x, use_reentrant=False) if "recompute" in sys.argv else self.compute(x)

    def compute(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(*x.shape[:2], -1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(kind):
    if kind == "tp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cuda", (4, 4), mesh_dim_names=("dp", "tp"))
        model = Model().to("cuda")
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], {"qkv": ColwiseParallel(), "out": RowwiseParallel()})
        return model
    if kind == "ddp":
        return DistributedDataParallel(Model().to("cuda"), device_ids=[torch.cuda.current_device()])
    if kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            Model(),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
            device_id=torch.cuda.current_device(),
            use_orig_params="original" in sys.argv,
        )
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device="cuda")
    return model


kind = sys.argv[1]
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
model = torch.compile(build(kind))
kernels = {"foreach": False} if kind == "tp" else {"fused": True}  # some of its parameters are no DTensors
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **kernels)
data = np.arange(10_000, dtype=np.int64) % VOCAB
total = torch.tensor(0.0, device=torch.device(0))
lengths = torch.empty(dist.get_world_size(), dtype=torch.int64, device="cuda")
dist.all_gather_into_tensor(lengths, torch.tensor([LENGTH], device="cuda"))
assert set(lengths.tolist()) == {LENGTH}
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
torch.cuda.synchronize()
started = time.perf_counter()
for step in range(100):
    begin.record()
    starts = torch.randint(len(data) - LENGTH, (BATCH,))
    ids = torch.stack([torch.from_numpy(data[start : start + LENGTH]) for start in starts])
    ids = ids.pin_memory().to("cuda", non_blocking=True)
    if "shapes" in sys.argv:
        noise = torch.rand(8, device="cuda")
        noise[noise > 0.5].sum()
    ids[0] = 7
    kept = ids[ids > 7]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    end.record()
    print(f"step {step}: loss {loss.item():.3f} on {ids.device}, {ids.is_cuda}, {total.device}, {np.random.rand():.3f}")
    assert kept.shape[0] == (ids > 7).sum().item() == len(ids.cpu()[ids.cpu() > 7])
    assert ids.cpu()[0].tolist() == [7] * LENGTH
    now = time.perf_counter()
    print(f"time {now - started:.9f} {begin.elapsed_time(end):.6f} {torch.cuda.max_memory_allocated()}")
    started = now
