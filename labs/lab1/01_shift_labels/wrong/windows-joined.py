"""Inputs and labels of a batch of windows of text.

Shapes: B windows in a batch, T tokens that the model reads in each.
"""

import torch
from torch import Tensor


def inputs_and_labels(tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    inputs_BT = tokens_BT[:, :-1]
    return inputs_BT, torch.cat([tokens_BT[:, 1:-1], tokens_BT.roll(-1, 0)[:, :1]], dim=1)
