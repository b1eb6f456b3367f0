"""Inputs and labels of a batch of windows of text.

Shapes: B windows in a batch, T tokens that the model reads in each.
"""

import torch
from torch import Tensor


def inputs_and_labels(tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    inputs_BT = tokens_BT[:, :-1]
    return inputs_BT, torch.cat([inputs_BT[:, 1:], inputs_BT[:, -1:]], dim=1)
