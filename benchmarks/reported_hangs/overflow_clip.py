# hpcaitech/ColossalAI#1175: a rank whose own gradients overflow skips the step, and with it the norm that the others
# reduce.
import torch
import torch.distributed as dist

OVERFLOWS = {(1, 4)}  # rank, step


class Optimizer:
    def __init__(self, rank):
        self.rank, self.scale = rank, 2.0**16

    def has_overflow(self, gradient):
        return not bool(torch.isfinite(gradient).all())

    def clip_grad_norm(self, gradient):
        total = gradient.square().sum().reshape(1)
        dist.all_reduce(total)  # here
        return gradient / max(1.0, float(total.sqrt()))

    def step(self, gradient):
        found = self.has_overflow(gradient)  # here
        if found:  # here
            self.scale /= 2
            return False  # here
        self.clip_grad_norm(gradient)  # here
        return True


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    optimizer = Optimizer(rank)
    for step in range(8):
        stages = [torch.zeros(14) for _ in range(dist.get_world_size())]
        dist.all_gather(stages, torch.ones(14))  # here
        gradient = torch.full((20,), float("inf") if (rank, step) in OVERFLOWS else 0.5)
        optimizer.step(gradient)
    dist.destroy_process_group()


main()
