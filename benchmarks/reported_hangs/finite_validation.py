# PrimeIntellect-ai/prime-rl#2515: validation reads a finite set to its end, and packing samples of different lengths
# gives the ranks different numbers of batches, for each of which the sharded weights are gathered.
import torch
import torch.distributed as dist
from torch import nn

SEQ_LEN = 16


class ShardedLinear(nn.Module):
    """Holds a shard of its weight; the forward gathers all of them."""

    def __init__(self, width):
        super().__init__()
        self.world = dist.get_world_size()
        self.shard = nn.Parameter(torch.ones(width // self.world, width))

    def unshard(self):
        shards = [torch.empty_like(self.shard) for _ in range(self.world)]
        dist.all_gather(shards, self.shard.detach())  # here
        return torch.cat(shards)

    def forward(self, x):
        return x @ self.unshard().T  # here


class CatDataset:
    """Joins samples to sequences of equal length, and drops the rest."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __iter__(self):
        buffered = 0
        for length in self.lengths:
            buffered += length
            while buffered >= SEQ_LEN:
                yield torch.randn(1, SEQ_LEN)
                buffered -= SEQ_LEN


class Trainer:
    def __init__(self, model, val_lengths):
        self.model, self.val_lengths = model, val_lengths

    def train_step(self):
        loss = self.model(torch.randn(2, SEQ_LEN)).sum().detach()
        dist.all_reduce(loss)

    def run_eval_loop(self):
        total = torch.zeros(2)
        for micro_batch in CatDataset(self.val_lengths):  # here
            total[0] += self.model(micro_batch).sum().detach()  # here
            total[1] += 1
        dist.all_reduce(total)  # here
        return total[0] / total[1]


def main():
    dist.init_process_group("gloo")
    lengths = [[7, 12, 9, 14, 8], [11, 13, 15, 16, 10]][dist.get_rank()]
    trainer = Trainer(ShardedLinear(SEQ_LEN), lengths)
    for _ in range(4):
        trainer.train_step()
    trainer.run_eval_loop()  # here
    dist.destroy_process_group()


main()
