"""DiLoCo: replicas that train separately and synchronize once per round of H steps.

Each rank holds the full model and takes the steps of a round by itself: AdamW on its own samples, with its own
moments, which it keeps from round to round. At the end of a round all replicas take one outer step together:

  difference = weights at the round's start - weights now        differs per rank: AdamW's total change
  mean       = mean of the differences over the ranks            the only communication
  momentum   = outer_momentum * momentum + mean                  the same on every rank from here on
  weights    = start - outer_learning_rate * (mean + outer_momentum * momentum)      Nesterov

Plan of communication, over `dp` (P bytes of parameters, n ranks):
  in H - 1 of H steps  nothing
  in a round's last    one all-reduce of the differences: 2(n-1)/n P bytes leave each rank. With `compression = "int8"`
                       an all-to-all and an all-gather of a quarter of that (`compression.py`); the rounding error is
                       kept for the next round. Also the few numbers of every agreement: losses, requests to stop.
Memory: in addition to ddp's, the weights of the round's start and the momentum, 2 P; with int8 (1 + 1/n) P more.

The outer weights, from the end of the last round, are authoritative: Frog evaluates them, samples from them, hashes and
saves them under the model's names. A checkpoint within a round also has each rank's own weights, moments and errors.

Source:  Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from frog.core.config import StrategyConfig
from frog.train.comm import Axis
from frog.train.parallel.data.compression import Int8Mean
from frog.train.parallel.data.data_parallel import DataParallel, GroupSpec
from frog.train.parallel.data.ddp import NaiveDDP


def build(spec: GroupSpec) -> DataParallel:
    """Return a replica of these parameters."""
    return DiLoCo(spec.trained, spec.shard, spec.config)


class DiLoCo(NaiveDDP):
    """One replica, and the outer optimizer, which is the same on every rank."""

    def __init__(self, named: Mapping[str, nn.Parameter], axis: Axis, config: StrategyConfig) -> None:
        super().__init__(named, axis)
        self._rate, self._decay = config.outer_learning_rate, config.outer_momentum
        self.outer = self.flat.data.clone()
        """The weights at the round's start."""
        self._momentum = torch.zeros_like(self.outer)
        self._ends_round = False
        self._inner: Tensor | None = None
        """This replica's weights, while the outer ones replace them in the model."""
        self._int8 = Int8Mean(axis, self.flat.size, self.outer.device) if config.compression == "int8" else None

    def finish(self, tail: Tensor | None = None) -> bool:
        """Keep the gradient local: `gather` does the reduction after the optimizer has run."""
        self._ends_round = True
        return False

    @torch.no_grad()
    def gather(self) -> None:
        if self._ends_round:
            mean = self.outer - self.flat.data
            self._average(mean)
            self._momentum.mul_(self._decay).add_(mean)
            self.outer.sub_(mean.add_(self._momentum, alpha=self._decay), alpha=self._rate)
            self.flat.data.copy_(self.outer)
            self._ends_round = False

    def _average(self, difference: Tensor) -> None:
        if self._int8 is not None:
            self._int8.average(difference)
        else:
            self.axis.all_reduce(difference)
            difference.div_(self.axis.size)

    # ---- authoritative weights and saved state ----------------------------------------------------------------------

    def weights(self, name: str, parameter: nn.Parameter) -> Tensor:
        return self.flat.view(self.outer, name) if name in self.flat.spans else parameter.detach()

    @torch.no_grad()
    def train(self, mode: bool) -> None:
        if not mode and self._inner is None:
            self._inner = self.flat.data.clone()
            self.flat.data.copy_(self.outer)
        elif mode and self._inner is not None:
            self.flat.data.copy_(self._inner)
            self._inner = None

    def shared(self) -> dict[str, Tensor]:
        return {"outer_momentum": self._momentum}

    def own(self) -> dict[str, Tensor]:
        return {"weights": self.flat.data} | (self._int8.own() if self._int8 is not None else {})

    @torch.no_grad()
    def loaded(self) -> None:
        self.flat.data.copy_(self.outer)
