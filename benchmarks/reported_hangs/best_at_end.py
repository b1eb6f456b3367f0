# huggingface/transformers#30702: at the end, the best checkpoint is loaded into a new model, which has other parameters
# on the ranks that find no adapter on their disk, and is wrapped again.
import pathlib
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def output_dir(rank):
    return pathlib.Path(f"node_{rank}") / "checkpoint-3"


def base_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1))


def save(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.module.state_dict(), folder / "adapter.pt")


def load_best(args):
    model = base_model()
    path = args.folder / "adapter.pt"
    if path.exists():  # here
        model.load_state_dict(torch.load(path))
    else:
        model = nn.Sequential(model, nn.Linear(1, 1))  # here
    return DDP(model)  # here


def train(args):
    model = DDP(base_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(args.steps):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).mean().backward()
        optimizer.step()
    if args.rank == 0:
        save(model, args.folder)
    dist.barrier()
    return load_best(args)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = train(SimpleNamespace(rank=rank, steps=3, folder=output_dir(rank)))  # here
    print(model(torch.ones(2, 5)))
    dist.destroy_process_group()


main()
