# PrimeIntellect-ai/prime-rl#1593 (a review in it): the folder of a run vanishes while the first rank copies it, and the
# error, which keeps the other runs alive, leads that rank past a barrier.
import logging
import shutil
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger("multi_ckpt")


class MultiCheckpointManager:
    """Saves the adapters of several runs that are trained together."""

    def __init__(self, root, names):
        self.root, self.names, self.rank = Path(root), names, dist.get_rank()

    def broadcasts(self, name, step):
        return self.root / name / "broadcasts" / f"step_{step}"

    def save_run(self, name, adapter, step):
        folder = self.root / name / "checkpoints" / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(adapter, folder / f"rank_{self.rank}.pt")
        if self.rank == 0:
            shutil.copytree(self.broadcasts(name, step), folder / "weight", dirs_exist_ok=True)  # here
        dist.barrier()  # here

    def save(self, adapters, step):
        for name in self.names:
            try:
                self.save_run(name, adapters[name], step)  # here
            except Exception as error:  # here
                log.warning("run %s was not saved: %s", name, error)


def main():
    dist.init_process_group("gloo")
    rank, names = dist.get_rank(), ["math", "code", "chat"]
    manager = MultiCheckpointManager("output", names)
    adapters = {name: torch.zeros(9) for name in names}
    for step in range(1, 5):
        for name in names:
            gradient = torch.randn(9)
            dist.all_reduce(gradient)  # here
            adapters[name] -= 0.1 * gradient
        if rank == 0:
            for name in names:
                if (name, step) != ("code", 2):  # an orchestrator deletes that run
                    manager.broadcasts(name, step).mkdir(parents=True, exist_ok=True)
        manager.save(adapters, step)  # here
    dist.destroy_process_group()


main()
