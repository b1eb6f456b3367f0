# pytorch/torchtitan#775: with fewer micro-batches than pipeline stages, a stage sends as many micro-batches ahead as
# its place in the pipeline asks for, and more than there are.
import torch
import torch.distributed as dist

STAGES, MICRO_BATCHES = 4, 2


class Stage:
    def __init__(self, index):
        self.index, self.last, self.sent = index, STAGES - 1, []

    def forward(self):
        x = torch.zeros(16)
        if self.index > 0:
            dist.recv(x, self.index - 1)  # here
        if self.index < self.last:
            self.sent.append(dist.isend(x + 1, self.index + 1))  # here

    def backward(self):
        gradient = torch.zeros(16)
        if self.index < self.last:
            dist.recv(gradient, self.index + 1)  # here
        if self.index > 0:
            self.sent.append(dist.isend(gradient + 1, self.index - 1))  # here


def run_schedule(stage):
    warmup = STAGES - stage.index  # here
    for _ in range(warmup):  # here
        stage.forward()  # here
    for _ in range(MICRO_BATCHES - warmup):
        stage.backward()  # here
        stage.forward()  # here
    for _ in range(min(warmup, MICRO_BATCHES)):
        stage.backward()  # here
    for work in stage.sent:
        work.wait()  # here


def main():
    dist.init_process_group("gloo")
    dist.barrier()
    run_schedule(Stage(dist.get_rank()))  # here
    dist.barrier()
    dist.destroy_process_group()


main()
