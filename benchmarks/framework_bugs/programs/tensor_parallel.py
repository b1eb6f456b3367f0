"""Train a small transformer with torch's tensor parallelism, and data parallelism by hand around it."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY, LENGTH, WIDTH, HEADS = 32, 12, 16, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (q, k, v))
        x = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x.transpose(1, 2).flatten(2))


class Gain(nn.Module):
    """A factor for each hidden feature; a rank uses those of its own features."""

    def __init__(self, part: int, parts: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.part, self.parts = part, parts
        self.weight = nn.Parameter(torch.ones(4 * WIDTH))
        self.weight.register_hook(lambda gradient: added(gradient, group))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.chunk(self.parts)[self.part]


def added(gradient: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    gradient = gradient.clone()
    dist.all_reduce(gradient, group=group)
    return gradient


class Block(nn.Module):
    def __init__(self, dropout: float, part: int, parts: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gain = Gain(part, parts, group)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm(x)))
        return x + self.dropout(self.down(self.gain(self.up(self.norm_2(x)).relu())))


class Language(nn.Module):
    def __init__(self, *how: object) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(*how) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def clip(model: nn.Module, limit: float, group: dist.ProcessGroup) -> None:
    """Clip by the norm of the whole: parts are added over ranks, copies count once."""
    square = torch.zeros(())
    for each in model.parameters():
        if isinstance(each, DTensor) and each.placements[0].is_shard():
            square += each.grad.to_local().pow(2).sum()
    dist.all_reduce(square, group=group)
    for each in model.parameters():
        if not (isinstance(each, DTensor) and each.placements[0].is_shard()):
            square += local(each.grad).pow(2).sum()
    for each in model.parameters():
        local(each.grad).mul_((limit / square.sqrt()).clamp(max=1.0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=0.0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tp = min(2, world)
    mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
    dp_rank, dp_group, tp_group = mesh["dp"].get_local_rank(), mesh["dp"].get_group(), mesh["tp"].get_group()
    torch.manual_seed(5)
    model = Language(args.dropout, rank % tp, tp, tp_group)
    columns, rows = ColwiseParallel(), RowwiseParallel()
    for block in model.blocks:
        names = ("attention.q", "attention.k", "attention.v", "up")
        plan = dict.fromkeys(names, columns) | dict.fromkeys(("attention.out", "down"), rows)
        parallelize_module(block, mesh["tp"], plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 + dp_rank)

    data = torch.randint(0, VOCABULARY, (256, LENGTH + 1), generator=torch.Generator().manual_seed(6))
    batches = data[dp_rank :: world // tp].split(args.batch_size)
    for step, tokens in zip(range(args.steps), batches, strict=False):
        logits = model(tokens[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for each in model.parameters():
            gradient = local(each.grad)
            dist.all_reduce(gradient, group=dp_group)
            gradient /= world // tp
        if args.clip:
            clip(model, args.clip, tp_group)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}: {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
