# speechbrain/speechbrain#1939 (in #2051): the end of a stage is handled by the main process only, where the counter of
# epochs learns of the validation's result, so that the counter of that process alone stops.
import torch
import torch.distributed as dist
from torch import nn


def run_on_main(function, *args):
    if dist.get_rank() == 0:  # here
        function(*args)


class EpochCounterWithStopper:
    def __init__(self, limit, patience):
        self.limit, self.patience = limit, patience
        self.current, self.best, self.bad, self.should_stop = 0, float("inf"), 0, False

    def __iter__(self):
        return self

    def __next__(self):
        if self.should_stop or self.current >= self.limit:  # here
            raise StopIteration
        self.current += 1
        return self.current

    def update_metric(self, score):
        self.best, self.bad = (score, 0) if score < self.best else (self.best, self.bad + 1)
        self.should_stop = self.bad >= self.patience  # here


class Brain:
    def __init__(self, counter):
        self.counter = counter
        self.module = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)

    def fit_batch(self, x):
        loss = self.module(x).square().mean()
        loss.backward()
        for parameter in self.module.parameters():
            dist.all_reduce(parameter.grad)  # here
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def on_stage_end(self, score):
        self.counter.update_metric(score)

    def fit(self, batches, valid_scores):
        for epoch in self.counter:  # here
            for x in batches:
                self.fit_batch(x)  # here
            run_on_main(self.on_stage_end, valid_scores[epoch - 1])  # here

    def evaluate(self, x):
        error = self.module(x).abs().mean().detach()
        dist.all_reduce(error)  # here
        return error


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    brain = Brain(EpochCounterWithStopper(limit=8, patience=2))
    brain.fit([torch.randn(3, 4) for _ in range(3)], [3.0, 2.0, 2.5, 2.6, 2.1, 1.9, 1.8, 1.7])  # here
    brain.evaluate(torch.randn(5, 4))  # here
    dist.destroy_process_group()


main()
