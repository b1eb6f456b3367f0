# huggingface/transformers#34642: a search for hyperparameters applies those of a trial on the main process only, among
# them the number of accumulation steps.
import dataclasses

import torch
import torch.distributed as dist
from torch import nn


@dataclasses.dataclass
class Arguments:
    learning_rate: float = 0.1
    gradient_accumulation_steps: int = 2


class FixedTrial:
    def __init__(self, **parameters):
        self.parameters = parameters


class Trainer:
    def __init__(self, arguments):
        self.arguments = arguments
        self.model = nn.Linear(6, 3)

    def setup_search(self, trial):
        if trial is not None:  # here
            self.arguments = dataclasses.replace(self.arguments, **trial.parameters)  # here

    def synchronize(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)  # here

    def batches(self):
        yield from torch.randn(12, 4, 6)

    def train(self):
        rate = self.arguments.learning_rate
        for number, batch in enumerate(self.batches(), 1):  # here
            self.model(batch).square().mean().backward()
            if number % self.arguments.gradient_accumulation_steps == 0:  # here
                self.synchronize()  # here
                with torch.no_grad():
                    for parameter in self.model.parameters():
                        parameter -= rate * parameter.grad
                self.model.zero_grad()

    def evaluate(self):
        losses = [torch.empty(2) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, torch.rand(2))  # here
        return torch.cat(losses).mean()


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(Arguments())
    space = [{"learning_rate": 0.05}, {"gradient_accumulation_steps": 3}]
    for parameters in space:
        trial = FixedTrial(**parameters) if dist.get_rank() == 0 else None  # here
        trainer.setup_search(trial)  # here
        trainer.train()  # here
        trainer.evaluate()  # here
    dist.destroy_process_group()


main()
