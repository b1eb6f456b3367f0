# KempnerInstitute/KempnerForge#104: a checkpoint is saved by a thread, which gathers in the group in which the main
# thread calls a barrier.
import threading
import time

import torch
import torch.distributed as dist

PLANNING_S = {0: 0.0, 1: 2.0}  # rank: the time that its plan takes


class Checkpointer:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def save(self, state):
        self.worker = threading.Thread(target=self.write, args=(state,))
        self.worker.start()

    def write(self, state):
        time.sleep(PLANNING_S[self.rank])
        plans = [torch.zeros(12) for _ in range(self.world)]
        dist.all_gather(plans, state)  # here

    def finish(self):
        self.worker.join()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    checkpointer, state = Checkpointer(rank, world), torch.ones(12)
    for _ in range(3):
        gradient = torch.ones(40)
        dist.all_reduce(gradient)
        state += gradient[:12]
    checkpointer.save(state)
    time.sleep(1.0)
    dist.barrier()  # here
    checkpointer.finish()
    dist.destroy_process_group()


main()
