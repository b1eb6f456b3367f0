"""A GPT in plain torch, sharded by FSDP2: the program that docs/plan/program.md plans."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, heads, recompute):
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return checkpoint(self.compute, x, use_reentrant=False) if self.recompute else self.compute(x)

    def compute(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        hidden = self.up(self.norm2(x))
        hidden = F.gelu(hidden)
        return x + self.down(hidden)


class GPT(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.vocab, args.width)
        self.positions = nn.Embedding(args.length, args.width)
        heads = args.width // 128
        self.blocks = nn.ModuleList(Block(args.width, heads, args.recompute) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, args.vocab, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


parser = argparse.ArgumentParser()
for name, default in {"layers": 32, "width": 4096, "vocab": 50304, "length": 4096, "batch": 2, "steps": 100}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--recompute", action="store_true")
args = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
with torch.device("meta"):
    model = GPT(args)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.blocks:
    fully_shard(block, mp_policy=policy)
fully_shard(model, mp_policy=policy)
model.to_empty(device="cuda")
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

for step in range(args.steps):
    ids = torch.randint(0, args.vocab, (args.batch, args.length + 1)).to("cuda")
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    del logits
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}")
