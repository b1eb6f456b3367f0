"""Train with DistributedDataParallel. Several micro-batches make one step of the optimizer."""

import argparse
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset


def make_data(args: argparse.Namespace) -> Dataset[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(args.seed)
    inputs = torch.randn(args.samples, 6, generator=generator)
    return TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


def groups_of(loader: DataLoader[tuple[Tensor, ...]], size: int) -> Iterator[list[tuple[Tensor, ...]]]:
    """Yield the micro-batches of each step."""
    group = []
    for batch in loader:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def train(args: argparse.Namespace) -> dict[str, Tensor]:
    """Train, and return the weights. Every rank calls this."""
    torch.manual_seed(args.seed)
    data = make_data(args)
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.micro_batch, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=0.1)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        losses = []
        for group in groups_of(loader, args.accumulate):
            for number, (inputs, targets) in enumerate(group, start=1):
                is_last = number == len(group)
                with nullcontext() if is_last else model.no_sync():
                    loss = (model(inputs) - targets).pow(2).mean()
                    (loss / len(group)).backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        mean = torch.stack(losses).mean() / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {mean.item():.4f}", flush=True)
    return model.module.state_dict()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=80)
    parser.add_argument("--micro-batch", type=int, default=4, help="samples of a rank in a forward")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches of a rank in a step")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
