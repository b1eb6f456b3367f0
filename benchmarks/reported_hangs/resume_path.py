# huggingface/transformers#28270: the name of the output folder has random letters of each rank's own, so that only one
# rank finds a checkpoint there, and loads it while the other begins to train.
import random
from pathlib import Path

import torch
import torch.distributed as dist

SUFFIXES = ("kq", "zt")


def output_folder(project, seed):
    return Path(project) / f"run-{random.Random(seed).choice(SUFFIXES)}"  # here


def get_last_checkpoint(folder):
    found = sorted(folder.glob("checkpoint-*"))
    return found[-1] if found else None


class Trainer:
    def __init__(self, folder):
        self.folder, self.weights = folder, torch.zeros(19)

    def _load_from_checkpoint(self, path):
        dist.barrier()  # here
        self.weights = torch.load(path / "weights.pt")

    def train(self, steps, resume_from_checkpoint=None):
        if resume_from_checkpoint is not None:  # here
            self._load_from_checkpoint(resume_from_checkpoint)  # here
        for _ in range(steps):
            gradient = torch.randn(19)
            dist.all_reduce(gradient)  # here
            self.weights -= 0.1 * gradient


def earlier_job():
    path = Path("finetune") / "run-zt" / "checkpoint-50"
    path.mkdir(parents=True, exist_ok=True)
    torch.save(torch.ones(19), path / "weights.pt")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        earlier_job()
    dist.barrier()
    folder = output_folder("finetune", seed=rank)
    last = get_last_checkpoint(folder) if folder.is_dir() else None  # here
    Trainer(folder).train(steps=4, resume_from_checkpoint=last)  # here
    dist.destroy_process_group()


main()
