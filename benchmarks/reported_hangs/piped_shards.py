# dylanyunlon/Neuron_SP#73: one rank does not come to the barrier before its forward, since its data iterator waits for
# a pipe that nothing writes to.
import os
import subprocess
import sys
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import nn

WRITER = "import sys\nwith open(sys.argv[1], 'w') as out:\n    out.write('\\n'.join(str(i) for i in range(40)))"


class PipedShard:
    """Lines of a shard that another process unpacks into a named pipe."""

    def __init__(self, path, stack, unpack):
        if os.path.exists(path):
            os.remove(path)
        os.mkfifo(path)
        self.path = path
        if unpack:
            process = subprocess.Popen([sys.executable, "-c", WRITER, path])
            stack.callback(process.wait)

    def __iter__(self):
        with open(self.path) as lines:  # here
            for line in lines:
                yield torch.full((2, 4), float(line))


class DeslocEngine:
    def __init__(self, model, data):
        self.model, self.data_iter = model, iter(data)

    def micro_step(self):
        batch = next(self.data_iter)  # here
        dist.barrier()
        return self.model(batch).mean()

    def train_step(self, micro_batches):
        for _ in range(micro_batches):
            self.micro_step().backward()  # here
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with ExitStack() as stack:
        shard = PipedShard(f"shard_{rank}.fifo", stack, unpack=rank != 2)
        engine = DeslocEngine(nn.Linear(4, 1), shard)
        for _ in range(3):
            engine.train_step(2)  # here
    dist.destroy_process_group()


main()
