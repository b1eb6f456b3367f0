"""Stochastic gradient descent, with momentum or without."""

from __future__ import annotations

from collections.abc import Sequence

from frog.config import OptimizerConfig
from frog.optim.eager import EagerSGD
from frog.optim.tensors import UpdatedTensor, decay_groups


def build(config: OptimizerConfig, tensors: Sequence[UpdatedTensor]) -> EagerSGD:
    """torch's SGD. Its momentum is a sum of gradients, not a mean: a momentum of 0.9 makes steps ten times as long.

    Source:  Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
    """
    groups = decay_groups(tensors, config.weight_decay)
    return EagerSGD(groups, lr=config.learning_rate, momentum=config.momentum)
