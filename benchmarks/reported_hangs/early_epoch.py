# isi-nlp/rtg#11: the stopper of each rank sees its own validation losses, and there is a barrier per checkpoint.
import collections
import logging

import torch
import torch.distributed as dist

log = logging.getLogger("rtg")


class EarlyStopper:
    def __init__(self, patience):
        self.losses = collections.deque(maxlen=patience + 1)

    def step(self, loss):
        self.losses.append(loss)
        full = len(self.losses) == self.losses.maxlen
        return full and min(list(self.losses)[1:]) >= self.losses[0]


class TrainerState:
    def __init__(self):
        self.step, self.stop = 0, False


LOSSES = {0: [5, 4, 3, 2.5, 2.2, 2.0], 1: [5, 4, 4.5, 4.6, 4.4, 4.2]}  # of each rank's own validation data


class SteppedTrainer:
    def __init__(self, rank):
        self.rank, self.state, self.stopper = rank, TrainerState(), EarlyStopper(2)

    def make_check_point(self, number):
        loss = LOSSES[self.rank][number]
        self.state.stop = self.stopper.step(loss)  # here
        dist.barrier()

    def batches(self):
        while self.state.step < 60:
            self.state.step += 1
            yield torch.randn(9)

    def train(self, check_point=10):
        for batch in self.batches():  # here
            dist.all_reduce(batch)  # here
            if self.state.step % check_point == 0:
                self.make_check_point(self.state.step // check_point - 1)
                if self.state.stop:  # here
                    log.info("stopping early")
                    break  # here

    def finish(self):
        final = torch.zeros(2, 2)
        dist.broadcast(final, src=0)  # here


def main():
    dist.init_process_group("gloo")
    trainer = SteppedTrainer(dist.get_rank())
    trainer.train()  # here
    trainer.finish()  # here
    dist.destroy_process_group()


main()
