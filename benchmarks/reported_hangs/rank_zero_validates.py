# LibreYOLO/libreyolo#594: rank 0 validates through the wrapped model, whose forward broadcasts buffers; the
# others wait for the result.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def validate(model, batches):
    model.eval()
    with torch.no_grad():
        losses = [model(batch).mean() for batch in batches]  # here
    model.train()
    return float(sum(losses))


def run_validation(model, is_main):
    result = [None]
    if is_main:  # here
        result = [validate(model, [torch.randn(4, 8) for _ in range(3)])]  # here
    dist.broadcast_object_list(result, src=0)  # here
    return result[0]


def main():
    dist.init_process_group("gloo")
    is_main = dist.get_rank() == 0
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    for step in range(8):
        model(torch.randn(4, 8)).mean().backward()
        if step % 4 == 3:
            run_validation(model, is_main)
    dist.destroy_process_group()


main()
