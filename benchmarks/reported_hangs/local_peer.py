# sgl-project/sglang#14202: send and recv take global ranks, and get the index within a pipeline.
import torch
import torch.distributed as dist


class Pipeline:
    def __init__(self, ranks, rank):
        self.index = ranks.index(rank)
        self.last = len(ranks) - 1

    def send_next(self, x):
        dist.send(x, dst=self.index + 1)  # here

    def recv_previous(self, x):
        dist.recv(x, src=self.index - 1)  # here

    def run(self, x):
        if self.index > 0:
            self.recv_previous(x)  # here
        x = x * 2
        if self.index < self.last:
            self.send_next(x)  # here
        return x


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pipeline = Pipeline([0, 1] if rank < 2 else [2, 3], rank)
    for _ in range(6):
        out = pipeline.run(torch.ones(8))
        dist.all_reduce(out)
    dist.destroy_process_group()


main()
