"""AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Sequence

from frog.core.config import OptimizerConfig
from frog.train.optim.eager import EagerAdamW
from frog.train.optim.tensors import UpdatedTensor, decay_groups


def build(config: OptimizerConfig, tensors: Sequence[UpdatedTensor]) -> EagerAdamW:
    """Build torch's AdamW, fused: one pass over each tensor.

    Source:  Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
    """
    return EagerAdamW(
        decay_groups(tensors, config.weight_decay),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
