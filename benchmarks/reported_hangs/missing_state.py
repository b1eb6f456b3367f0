# ByteDance-Seed/VeOmni#1179: one rank does not find its own state file, and begins at step 0 where the others resume.
import json
import pathlib

import torch
import torch.distributed as dist

STEPS = 12


def load_start(rank):
    path = pathlib.Path(f"state_{rank}.json")
    if not path.exists():  # here
        print(f"no trainer state at {path}; resuming weights only", flush=True)
        return 0  # here
    return json.loads(path.read_text())["step"]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank != 1:  # stands for the disk of rank 1's node, which was replaced
        pathlib.Path(f"state_{rank}.json").write_text(json.dumps({"step": 5}))
    start = load_start(rank)  # here
    for _ in range(start, STEPS):  # here
        grad = torch.ones(40)
        dist.all_reduce(grad)  # here
    total = torch.zeros(3)
    dist.all_reduce(total)  # here
    dist.destroy_process_group()


main()
