"""Run one stage of a pipeline: its passes in the order of 1F1B, and the messages between them."""

import schedule  # exercise 5.5
import torch
import torch.distributed as dist
from torch import Tensor, nn


def one_f_one_b(rank: int, num_ranks: int, num_micro: int) -> list[tuple[str, int]]:
    """Return the rank's passes in order, as ("F", micro-batch) and ("B", micro-batch)."""
    return [(action.kind, action.micro) for action in schedule.one_f_one_b(num_ranks, num_micro)[rank]]


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean loss of a micro-batch."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Runner:
    """Runs this rank's passes of one training step.

    stage:   this rank's layers. The first stage takes tokens, every other one the previous stage's output, of shape
             (samples, length, stage.width). The last one returns logits.
    micros:  the tokens of each micro-batch, (samples, length + 1), on every rank. The last one may have fewer samples.
    """

    def __init__(self, stage: nn.Module, micros: list[Tensor]) -> None:
        self.stage, self.micros = stage, micros
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.num_samples = sum(map(len, micros))
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}  # each micro-batch's input and output, from its F to its B
        self.loss = 0.0  # on the last rank: the mean loss of all samples

    def forward(self, micro: int, x: Tensor | None) -> Tensor | None:
        """Run a forward pass. x: the previous stage's output. Return the output if another stage needs it."""
        raise NotImplementedError("fill in forward")

    def backward(self, micro: int, gradient: Tensor | None) -> Tensor | None:
        """Run a backward pass. gradient: that of the stage's output. Return its input's if another stage needs it."""
        raise NotImplementedError("fill in backward")

    def run(self) -> None:
        """Run all passes, and move each result to the rank whose pass needs it.

        Comm:  one message for each result. The messages between two ranks, in both directions, are in one queue: the
               operations of one batch_isend_irecv are one entry, any other operation is an entry of its own, and an
               entry begins when the one before it is complete. The ranks cannot deadlock.
        """
        passes = one_f_one_b(self.rank, self.size, len(self.micros))
        raise NotImplementedError("fill in run")


def train_step(stage: nn.Module, batch: Tensor, micro_size: int, ends: dist.ProcessGroup | None) -> float:
    """Leave in .grad of the stage's parameters the gradient of the mean loss of all samples; return the loss.

    ends:  the group of the first and the last rank; None on other ranks. Both have a copy of the embedding's weight,
           which is also the output layer's: the parameter stage.tied, None on other ranks. The copies remain equal.

    Comm:    each micro-batch's output to the next rank, and its gradient back; one all-reduce over `ends`.
    Memory:  a rank holds the activations of at most as many micro-batches as 1F1B's order needs.
    Returns: the loss on the last rank, 0.0 on others.
    """
    runner = Runner(stage, list(batch.split(micro_size)))
    runner.run()
    raise NotImplementedError("fill in what the copies of stage.tied need")
