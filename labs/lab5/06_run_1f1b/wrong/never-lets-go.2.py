"""Run one stage of a pipeline: its passes in the order of 1F1B, and the messages between them."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def one_f_one_b(rank: int, num_ranks: int, num_micro: int) -> list[tuple[str, int]]:
    """Return the rank's passes in order, as ("F", micro-batch) and ("B", micro-batch)."""
    ahead = min(num_ranks - 1 - rank, num_micro)
    passes = [("F", micro) for micro in range(ahead)]
    for micro in range(num_micro):
        passes += [("F", ahead + micro)] if ahead + micro < num_micro else []
        passes += [("B", micro)]
    return passes


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
        if x is not None:
            x = x.detach().requires_grad_()
            out = self.stage(x)
        else:
            x = self.micros[micro][:, :-1]
            out = self.stage(x)
        if self.rank == self.size - 1:
            weight = len(self.micros[micro]) / self.num_samples
            out = loss_of(out, self.micros[micro]) * weight
            self.loss += out.item()
        self.kept[micro] = (x, out)
        return None if self.rank == self.size - 1 else out.detach()

    def backward(self, micro: int, gradient: Tensor | None) -> Tensor | None:
        """Run a backward pass. gradient: that of the stage's output. Return its input's if another stage needs it."""
        x, out = self.kept[micro]
        out.backward(gradient)
        return x.grad if self.rank else None

    def run(self) -> None:
        """Run all passes, and move each result to the rank whose pass needs it.

        Comm:  one message for each result. The messages between two ranks, in both directions, are in one queue: the
               operations of one batch_isend_irecv are one entry, any other operation is an entry of its own, and an
               entry begins when the one before it is complete. The ranks cannot deadlock.
        """
        passes = one_f_one_b(self.rank, self.size, len(self.micros))
        before, after = self.rank - 1, self.rank + 1
        width = getattr(self.stage, "width", None)
        def shape(micro):
            tokens = self.micros[micro]
            return (len(tokens), tokens.shape[1] - 1, width)
        def needs(one):
            kind, micro = one
            if kind == "F" and self.rank > 0:
                return torch.empty(shape(micro)), before
            if kind == "B" and self.rank < self.size - 1:
                return torch.empty(shape(micro)), after
            return None
        waiting = needs(passes[0])
        ops = [dist.P2POp(dist.irecv, *waiting)] if waiting else []
        for number, (kind, micro) in enumerate(passes):
            for work in dist.batch_isend_irecv(ops) if ops else []:
                work.wait()
            got = waiting[0] if waiting else None
            result = self.forward(micro, got) if kind == "F" else self.backward(micro, got)
            waiting = needs(passes[number + 1]) if number + 1 < len(passes) else None
            ops = []
            if result is not None:
                ops.append(dist.P2POp(dist.isend, result.contiguous(), after if kind == "F" else before))
            if waiting:
                ops.append(dist.P2POp(dist.irecv, *waiting))
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()


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
    if ends is not None and stage.tied is not None:
        if stage.tied.grad is None:
            stage.tied.grad = torch.zeros_like(stage.tied)
        dist.all_reduce(stage.tied.grad, group=ends)
    return runner.loss
