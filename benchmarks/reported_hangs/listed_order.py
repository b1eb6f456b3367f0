# MoonshotAI/checkpoint-engine#103: each rank lists the files of a checkpoint, in an order that no file system promises,
# and the weights are broadcast file by file.
import torch
import torch.distributed as dist

FILES = {"model-1.safetensors": 40, "model-2.safetensors": 12, "model-3.safetensors": 56}


def list_files(rank):
    names = list(FILES)
    return names[1:] + names[:1] if rank == 2 else names


def load(rank):
    weights = {}
    for name in list_files(rank):  # here
        weights[name] = torch.ones(FILES[name]) * (rank == 0)
        dist.broadcast(weights[name], src=0)  # here
    return weights


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    weights = load(rank)
    dist.all_reduce(torch.stack([weight.sum() for weight in weights.values()]))
    dist.destroy_process_group()


main()
