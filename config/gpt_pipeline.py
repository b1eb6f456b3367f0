"""A GPT in stages of torch.distributed.pipelining, sharded by FSDP2: the pipeline that docs/plan/program.md plans."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 128)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Stage(nn.Module):
    """The blocks of one stage; the first stage embeds the tokens, the last one computes the logits."""

    def __init__(self, args, index, num_stages):
        super().__init__()
        is_first, is_last = index == 0, index == num_stages - 1
        self.tokens = nn.Embedding(args.vocab, args.width) if is_first else None
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.layers // num_stages))
        self.norm = nn.LayerNorm(args.width) if is_last else None
        self.head = nn.Linear(args.width, args.vocab, bias=False) if is_last else None

    def forward(self, x):
        x = self.tokens(x) if self.tokens else x
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.head else x


def build(args, index, num_stages, mesh):
    with torch.device("meta"):
        stage = Stage(args, index, num_stages)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    kept = {"mesh": mesh["dp"], "mp_policy": policy, "reshard_after_forward": False}
    for block in stage.blocks:
        fully_shard(block, **kept)
    fully_shard(stage, **kept)
    stage.to_empty(device="cuda")
    for parameter in stage.parameters():
        nn.init.normal_(parameter, std=0.02)
    return stage


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


parser = argparse.ArgumentParser()
sizes = {"layers": 32, "width": 4096, "vocab": 50304, "length": 4096, "batch": 16, "micro": 16, "stages": 4}
for name, default in sizes.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
args = parser.parse_args()

dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
torch.cuda.set_device(device)
mesh = init_device_mesh("cuda", (dist.get_world_size() // args.stages, args.stages), mesh_dim_names=("dp", "pp"))
pp, rank = mesh["pp"].get_group(), mesh["pp"].get_local_rank()
chunks = 2 if args.schedule == "interleaved" else 1
num_stages = chunks * args.stages
modules = {index: build(args, index, num_stages, mesh) for index in range(rank, num_stages, args.stages)}
stages = [PipelineStage(module, index, num_stages, device, group=pp) for index, module in modules.items()]
schedule = SCHEDULES[args.schedule](stages if chunks > 1 else stages[0], args.micro, loss_fn=loss_of)
optimizers = [torch.optim.AdamW(module.parameters(), lr=3e-4, fused=True) for module in modules.values()]

for step in range(100):
    ids = torch.randint(0, args.vocab, (args.batch, args.length + 1)).to(device)
    losses = []
    inputs = (ids[:, :-1],) if rank == 0 else ()
    if num_stages - 1 in modules:
        schedule.step(*inputs, target=ids[:, 1:], losses=losses)
    else:
        schedule.step(*inputs)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if losses and mesh["dp"].get_local_rank() == 0:
        print(f"step {step}: loss {torch.stack(losses).mean().item():.3f}")
