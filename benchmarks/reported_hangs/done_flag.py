# allenai/allennlp#5088: ranks agree before each batch on whether one of them has no more data, but a custom trainer
# leaves its loop without the last word.
import torch
import torch.distributed as dist
from torch import nn


class Batches:
    def __init__(self, count, size):
        self.count, self.size = count, size

    def __iter__(self):
        return (torch.randn(2, self.size) for _ in range(self.count))


class GradientDescentTrainer:
    def __init__(self, model, distributed=True):
        self.model, self._distributed = model, distributed

    def others_are_done(self):
        done = torch.tensor(0)
        dist.all_reduce(done, dist.ReduceOp.SUM)  # here
        return bool(done)

    def say_done(self):
        dist.all_reduce(torch.tensor(1), dist.ReduceOp.SUM)

    def batch_outputs(self, batch):
        loss = self.model(batch).square().mean()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        return loss.item()

    def train_epoch(self, batches):
        done_early, losses = False, []
        for batch in batches:  # here
            if self._distributed:
                done_early = self.others_are_done()  # here
                if done_early:
                    break
            losses.append(self.batch_outputs(batch))
        else:
            if self._distributed and not done_early:
                self.say_done()
        return losses


class ClippedTrainer(GradientDescentTrainer):
    def train_epoch(self, batches):
        losses = []
        for batch in batches:  # here
            if self.others_are_done():  # here
                break
            losses.append(self.batch_outputs(batch))
        return losses


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainer = ClippedTrainer(nn.Linear(7, 2))
    for _ in range(2):
        losses = trainer.train_epoch(Batches(5 if rank == 0 else 6, 7))  # here
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, sum(losses))  # here
    dist.destroy_process_group()


main()
