# sandyresearch/parcae#12: the rank with the least data leaves its loop without an error and ends, and the others wait
# in the next step.
import torch
import torch.distributed as dist

FILES = {0: [5, 5, 4], 1: [5, 5, 4], 2: [5, 3, 4]}  # rank: rows of each of its files


class Stream:
    def __init__(self, files):
        self.files, self.file, self.row = files, 0, 0

    def __iter__(self):
        while self.file < len(self.files):  # here
            while self.row < self.files[self.file]:  # here
                self.row += 1
                yield torch.full((2, 4), float(self.row))
            self.file, self.row = self.file + 1, 0


def train(stream, model):
    steps = 0
    for batch in stream:  # here
        gradient = batch.sum(0) * model
        dist.all_reduce(gradient)  # here
        model -= 0.01 * gradient
        steps += 1
    return steps


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    steps = train(Stream(FILES[rank]), torch.ones(4))
    print(f"rank {rank} has completed {steps} steps", flush=True)


main()
