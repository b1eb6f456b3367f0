# Lightning-AI/pytorch-lightning#19106: each logged value is reduced by its own collective, and one rank logs one
# more.
import torch
import torch.distributed as dist

RARE = {(2, 5)}  # rank and step with a sample of the rare class


def synchronize(metrics):
    result = {}
    for name in sorted(metrics):  # here
        value = torch.tensor([metrics[name]])
        dist.all_reduce(value)  # here
        result[name] = float(value)
    return result


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(10):
        grad = torch.ones(48)
        dist.all_reduce(grad)  # here
        metrics = {"loss": 1.0, "accuracy": 0.5}
        if (rank, step) in RARE:  # here
            metrics["recall/rare"] = 1.0  # here
        synchronize(metrics)  # here
    dist.destroy_process_group()


main()
