"""Stochastic gradient descent, with or without momentum."""

from __future__ import annotations

from collections.abc import Sequence

from frog.core.config import OptimizerConfig
from frog.train.optim.eager import EagerSGD
from frog.train.optim.tensors import UpdatedTensor, decay_groups


def build(config: OptimizerConfig, tensors: Sequence[UpdatedTensor]) -> EagerSGD:
    """Build torch's SGD. Its momentum sums gradients instead of averaging: momentum 0.9 makes steps ten times longer.

    Source:  Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
    """
    groups = decay_groups(tensors, config.weight_decay)
    return EagerSGD(groups, lr=config.learning_rate, momentum=config.momentum)
