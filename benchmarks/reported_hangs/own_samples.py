# NVIDIA/TensorRT-LLM#12024: each tensor-parallel rank samples the next token with its own random numbers, so that a
# request ends earlier on one of them.
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

END = 0


@dataclass
class Request:
    number: int
    tokens: list = field(default_factory=lambda: [5])
    most: int = 40

    @property
    def is_finished(self):
        return self.tokens[-1] == END or len(self.tokens) >= self.most


class Sampler:
    def __init__(self, seed, temperature):
        self.random = torch.Generator().manual_seed(seed)
        self.temperature = temperature

    def __call__(self, logits):
        probabilities = (logits / self.temperature).softmax(-1)
        return int(torch.multinomial(probabilities, 1, generator=self.random))  # here


class ParallelModel:
    def __init__(self, vocabulary=8):
        torch.manual_seed(0)
        self.weight = torch.randn(vocabulary, vocabulary)

    def logits(self, token):
        partial = self.weight[token] / dist.get_world_size()
        dist.all_reduce(partial)  # here
        return partial


class Executor:
    def __init__(self, model, sampler):
        self.model, self.sampler = model, sampler

    def run(self, request):
        while not request.is_finished:  # here
            logits = self.model.logits(request.tokens[-1])  # here
            request.tokens.append(self.sampler(logits))
        return request

    def respond(self, request):
        lengths = torch.zeros(dist.get_world_size(), dtype=torch.long)
        lengths[dist.get_rank()] = len(request.tokens)
        dist.all_reduce(lengths)  # here
        return lengths.tolist()


def main():
    dist.init_process_group("gloo")
    executor = Executor(ParallelModel(), Sampler(seed=dist.get_rank(), temperature=1.5))
    for number in range(6):
        print(executor.respond(executor.run(Request(number))))  # here
    dist.destroy_process_group()


main()
