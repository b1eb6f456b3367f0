# bo-ke/llm-internal-medicine#45: a pipeline stage without a monitored layer has no metrics, and returns before
# the gather.
import torch
import torch.distributed as dist

LAYERS = {0: ["embed", "block0"], 1: ["block1", "block2"], 2: ["block3"], 3: []}


def gather_metrics(local):
    if not local:  # here
        return {}  # here
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, local)  # here
    return {name: value for metrics in everyone for name, value in metrics.items()}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(1, 11):
        grad = torch.ones(32)
        dist.all_reduce(grad)  # here
        if step % 5 == 0:
            local = {f"{layer}/norm": float(step) for layer in LAYERS[rank]}
            metrics = gather_metrics(local)  # here
            if rank == 0:
                print(step, len(metrics), flush=True)
    dist.destroy_process_group()


main()
