# msr-fiddle/pipedream#80: the stages of a pipeline have loaders of different lengths, so that the last stage waits for
# the activations of a batch that the first one does not have.
import torch
import torch.distributed as dist
from torch import nn

SAMPLES, WIDTH = 22, 5


def num_batches(stage, batch_size=4):
    """Batches of a stage's loader: only the first stage drops its last, incomplete batch."""
    drop_last = stage == 0
    return SAMPLES // batch_size if drop_last else -(-SAMPLES // batch_size)


class StageRuntime:
    def __init__(self, stage):
        self.stage, self.module = stage, nn.Linear(WIDTH, WIDTH)

    def run_first(self, batches):
        for _ in range(batches):  # here
            activations = self.module(torch.randn(4, WIDTH))
            dist.send(activations.detach(), dst=1)  # here
            gradient = torch.zeros(4, WIDTH)
            dist.recv(gradient, src=1)  # here
            activations.backward(gradient)

    def run_last(self, batches):
        for _ in range(batches):  # here
            received = torch.zeros(4, WIDTH)
            dist.recv(received, src=0)  # here
            received.requires_grad_()
            self.module(received).square().mean().backward()
            dist.send(received.grad, dst=0)  # here


def main():
    dist.init_process_group("gloo")
    runtime = StageRuntime(dist.get_rank())
    batches = num_batches(runtime.stage)  # here
    for _ in range(2):
        if runtime.stage == 0:
            runtime.run_first(batches)  # here
        else:
            runtime.run_last(batches)  # here
        dist.barrier()  # here
    dist.destroy_process_group()


main()
