"""A rank of the real training program, with a strategy that communicates only in every third step.

    local_steps_worker.py calm|stop|nan

In the steps between, each rank updates its own weights; in every third, all ranks take the mean of all weights. Rank 1
receives a stop request or has a NaN in step 4.
"""

import argparse
import math
import signal
import sys
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor

from frog.core.config.arguments import add_train_arguments
from frog.core.processes import leave
from frog.train.data import Batch
from frog.train.main import run_rank
from frog.train.parallel.scratch import FromScratch
from frog.train.parallel.strategy import Agreement, Span, no_span

EVERY = 3
NAME = sys.argv[1]


class LocalSteps(FromScratch):
    """Local AdamW steps on each rank, and the mean of the weights in some steps."""

    step_number = 0

    def reduces(self, step: int) -> bool:
        return step % EVERY == 0

    def forward_backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], span: Span = no_span) -> Tensor:
        self.step_number = batch.step
        loss = super().forward_backward(batch, scale, span)
        if batch.step == 4 and self.mesh.world.rank == 1:
            if NAME == "stop":
                signal.raise_signal(signal.SIGTERM)
            if NAME == "nan":
                loss.fill_(math.nan)
        return loss

    def reduce(self, loss: Tensor, stop: bool) -> Agreement:
        slots = self._slots(loss, stop)
        self.mesh.world.axis.all_reduce(slots)
        return self._agreement(slots, None)

    @torch.no_grad()
    def step(self, scaler: torch.amp.GradScaler) -> None:
        super().step(scaler)
        if self.reduces(self.step_number):
            for parameter in self.model.parameters():
                self.mesh.dp.all_reduce(parameter.data)
                parameter.data.div_(self.mesh.dp.size)


settings = (f"name=local-{NAME}", "train.steps=9", "checkpoint.every=9", "eval.every=9", "eval.sample_tokens=0")
parser = argparse.ArgumentParser()
add_train_arguments(parser)
arguments = parser.parse_args(["run.toml", *(word for text in settings for word in ("--set", text))])
with mock.patch("frog.train.parts.build_strategy", LocalSteps):
    leave(run_rank(arguments))
