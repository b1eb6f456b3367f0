# PaddlePaddle/PaddleFormers#3010: an expert without tokens returns a new tensor, so its backward has no all-to-all.
import torch
import torch.distributed as dist
from torch import nn

TOKENS = {(1, 4): 0}  # rank, step: tokens for its expert, otherwise 6


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x.contiguous())
        return received

    @staticmethod
    def backward(ctx, grad):
        received = torch.empty_like(grad)
        dist.all_to_all_single(received, grad.contiguous())  # here
        return received


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 16)
        self.expert = nn.Linear(16, 16)

    def forward(self, x, tokens):
        routed = self.router(x)
        mine = Exchange.apply(routed)
        done = self.apply_expert(mine, tokens)  # here
        return routed + Exchange.apply(done)  # here

    def apply_expert(self, x, tokens):
        if tokens == 0:  # here
            return torch.zeros(x.shape)  # here
        return self.expert(x)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Experts()
    for step in range(8):
        loss = model(torch.randn(4, 16), TOKENS.get((rank, step), 6)).pow(2).mean()
        loss.backward()  # here
        for parameter in model.router.parameters():
            dist.all_reduce(parameter.grad)  # here
        model.zero_grad()
    dist.destroy_process_group()


main()
