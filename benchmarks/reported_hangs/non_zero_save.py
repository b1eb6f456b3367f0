# deepspeedai/DeepSpeed#297: only the process that saves a checkpoint without ZeRO comes to the barrier of its folder.
import os

import torch
import torch.distributed as dist


class Grid:
    def __init__(self, model_parallel):
        self.rank, self.model_parallel = dist.get_rank(), model_parallel

    @property
    def data_parallel_id(self):
        return self.rank // self.model_parallel


class Engine:
    def __init__(self, grid, zero_stage=0):
        self.grid, self.zero_stage = grid, zero_stage
        self.weights = torch.ones(15)
        self.save_non_zero_checkpoint = grid.data_parallel_id == 0
        self.save_zero_checkpoint = zero_stage > 0

    def _create_folder(self, path):
        os.makedirs(path, exist_ok=True)
        dist.barrier()  # here

    def _save(self, path):
        torch.save(self.weights, os.path.join(path, f"mp_rank_{self.grid.rank}.pt"))

    def save_checkpoint(self, folder, tag):
        path = os.path.join(folder, tag)
        if self.save_non_zero_checkpoint:  # here
            self._create_folder(path)  # here
            self._save(path)
        if self.save_zero_checkpoint:
            self._create_folder(path)
            self._save(path)

    def step(self):
        gradient = torch.randn(15)
        dist.all_reduce(gradient)  # here
        self.weights -= 0.01 * gradient


def main():
    dist.init_process_group("gloo")
    engine = Engine(Grid(model_parallel=2))
    for number in range(1, 5):
        engine.step()  # here
        if number % 2 == 0:
            engine.save_checkpoint("checkpoints", f"step{number}")  # here
    dist.destroy_process_group()


main()
