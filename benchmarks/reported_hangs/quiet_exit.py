# NVIDIA/Megatron-LM#367: a checkpoint that one rank cannot load makes it leave, and only rank 0 prints such errors.
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn


def print_rank_0(message):
    if dist.get_rank() == 0:
        print(message, flush=True)


def checkpoint_name(iteration):
    return pathlib.Path("checkpoints", f"iter_{iteration:07d}", f"mp_rank_{dist.get_rank():02d}.pt")


def write_earlier_run():
    """What an earlier job has left: the upload of the last shard was lost."""
    name = checkpoint_name(100)
    name.parent.mkdir(parents=True, exist_ok=True)
    if dist.get_rank() != 2:
        torch.save({"iteration": 100, "model": nn.Linear(4, 4).state_dict()}, name)
    dist.barrier()


def load_checkpoint(model):
    try:
        state = torch.load(checkpoint_name(100))  # here
    except BaseException as error:  # here
        print_rank_0(f"could not load the checkpoint: {error}")
        sys.exit()  # here
    model.load_state_dict(state["model"])
    dist.barrier()  # here
    print_rank_0("successfully loaded the checkpoint")
    return state["iteration"]


def main():
    dist.init_process_group("gloo")
    write_earlier_run()
    model = nn.Linear(4, 4)
    iteration = load_checkpoint(model)  # here
    for _ in range(iteration, iteration + 10):
        loss = model(torch.randn(2, 4)).sum()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    dist.destroy_process_group()


main()
