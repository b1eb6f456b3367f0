"""Train a small model with FSDP2: micro-batches, mixed precision if asked for, clipping by the norm of the whole."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

VOCABULARY, LENGTH, WIDTH = 32, 12, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(5)
    model = Language()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if args.bf16 else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    data = torch.randint(0, VOCABULARY, (256, LENGTH + 1), generator=torch.Generator().manual_seed(6))
    own = data[rank::world]
    batches = iter(own.split(args.batch_size))
    for step in range(args.steps):
        for micro in range(args.accumulate):
            tokens = next(batches)
            model.set_requires_gradient_sync(micro == args.accumulate - 1)
            logits = model(tokens[:, :-1])
            loss = cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()) / args.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: {mean / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
