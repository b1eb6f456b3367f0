# ByteDance-Seed/VeOmni#1181: the future of an asynchronous save raises on one rank, which therefore leaves out the
# barrier after it; the trainer logs the error and continues.
import logging
import pathlib
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("trainer")


class Checkpointer:
    def __init__(self, folder):
        self.folder, self.executor, self.pending = pathlib.Path(folder), ThreadPoolExecutor(1), None

    def _write(self, name, state):
        torch.save(state, self.folder / name)

    def drain(self):
        if self.pending is None:
            return
        future, self.pending = self.pending, None
        future.result()  # here
        dist.barrier()  # here

    def save(self, name, state):
        self.drain()  # here
        self.pending = self.executor.submit(self._write, name, state)


class Trainer:
    def __init__(self, rank):
        self.state = torch.ones(25)
        folder = pathlib.Path(f"rank_{rank}")
        if rank == 0:
            folder.mkdir(exist_ok=True)
        self.checkpointer = Checkpointer(folder)

    def step(self):
        gradient = torch.randn(25)
        dist.all_reduce(gradient)  # here
        self.state -= 0.1 * gradient

    def checkpoint(self, step):
        try:
            self.checkpointer.save(f"{step}.pt", self.state.clone())  # here
        except Exception as error:  # here
            log.error("could not save step %d: %s", step, error)  # here


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for step in range(1, 7):
        trainer.step()  # here
        if step % 2 == 0:
            trainer.checkpoint(step)  # here
    dist.destroy_process_group()


main()
