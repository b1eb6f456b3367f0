"""Llama without torch.compile, as published runs trained it: a program for planner_programs.py.

    planned_llama.py MODEL BATCH

FSDP2 of each layer, bfloat16, key and value heads copied, rotary positions in float32, AdamW, clipped gradients.
"""

import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from planner_memory import every_second_product
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@dataclass(frozen=True)
class Case:
    """A model, and how its program trains it."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    length: int
    recompute: str = "none"
    """`alternate`: attention and every second product are kept; `full`: nothing of a layer."""
    in_float32: bool = False
    """The loss is computed, and gradients are reduced, in float32."""
    shards_in_node: bool = False
    """Parameters are sharded inside of a node, and copied to the others."""


CASES = {
    "llama3-8b": Case(32, 4096, 32, 8, 14336, 128256, 8192, "alternate", True),  # torchtitan at the end of 2024
    "llama2-7b": Case(32, 4096, 32, 32, 11008, 32000, 4096, shards_in_node=True),  # fms-fsdp, from here on
    "llama2-13b": Case(40, 5120, 40, 40, 13824, 32000, 4096, shards_in_node=True),
    "llama2-34b": Case(48, 8192, 64, 8, 22016, 32000, 4096, "full"),
    "llama2-70b": Case(80, 8192, 64, 8, 28672, 32000, 4096, "full"),
}
case, BATCH = CASES[sys.argv[1]], int(sys.argv[2])
LAYERS, WIDTH, HEADS, KV_HEADS, FFN = case.layers, case.width, case.heads, case.kv_heads, case.ffn
VOCAB, LENGTH = case.vocab, case.length
HEAD = WIDTH // HEADS


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False) for _ in range(2))

    def forward(self, x, angles):
        q, k, v = (linear(x).view(*x.shape[:2], -1, HEAD) for linear in (self.q, self.k, self.v))
        q, k = rotate(q, angles), rotate(k, angles)
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, 2) for part in (k, v))
        y = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)), is_causal=True)
        return self.o(y.transpose(1, 2).reshape(x.shape))


def rotate(x, angles):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3).type_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.gate, self.up = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(WIDTH, FFN, bias=False)
        self.down = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x, angles):
        x = x + self.attention(self.norm1(x), angles)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids, angles):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, angles)
        return self.output(self.norm(x))


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
with torch.device("meta"):
    model = Llama()
reduced = torch.float32 if case.in_float32 else torch.bfloat16
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
nodes = dist.get_world_size() // torch.cuda.device_count()
sizes = (nodes, torch.cuda.device_count()) if case.shards_in_node else (dist.get_world_size(),)
settings = {
    "mesh": init_device_mesh("cuda", sizes, mesh_dim_names=("nodes", "gpus")[-len(sizes) :]),
    "mp_policy": policy,
}
keeps = {"context_fn": every_second_product} if case.recompute == "alternate" else {}
for number, layer in enumerate(model.layers):
    if case.recompute != "none":
        model.layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False, **keeps)
    fully_shard(model.layers[number], **settings, reshard_after_forward=number < LAYERS - 1)
fully_shard(model, **settings)
model.to_empty(device="cuda")
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
angles = torch.zeros(LENGTH, 1, HEAD // 2, dtype=torch.complex64, device="cuda")
for _ in range(100):
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH + 1)).to("cuda")
    logits = model(ids[:, :-1], angles)
    logits = logits.flatten(0, 1)
    loss = F.cross_entropy(logits.float() if case.in_float32 else logits, ids[:, 1:].flatten())
    del logits
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
