# talmolab/sleap-nn#437: a callback at the end of an epoch returns on all ranks but the first, which then waits at its
# barrier.
import torch
import torch.distributed as dist


class Figures:
    def __init__(self, every):
        self.every = every

    def on_epoch_end(self, trainer):
        if not trainer.is_global_zero:  # here
            return  # here
        if trainer.epoch % self.every == 0:
            trainer.drawn.append(trainer.epoch)
        trainer.barrier()  # here


class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.drawn = callbacks, []
        self.is_global_zero = dist.get_rank() == 0

    def barrier(self):
        dist.barrier()  # here

    def fit(self, epochs):
        for self.epoch in range(epochs):
            for _ in range(4):
                dist.all_reduce(torch.ones(18))  # here
            for callback in self.callbacks:
                callback.on_epoch_end(self)  # here


def main():
    dist.init_process_group("gloo")
    Trainer([Figures(every=2)]).fit(3)
    dist.destroy_process_group()


main()
