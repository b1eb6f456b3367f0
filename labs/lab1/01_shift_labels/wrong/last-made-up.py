"""Inputs and labels of a batch of windows of text.

Shapes: B windows in a batch, T tokens that the model reads in each.
"""

import torch
from torch import Tensor


def inputs_and_labels(tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    inputs_BT = tokens_BT[:, :-1]
    labels_BT = torch.full_like(inputs_BT, -100)
    labels_BT[:, :-1] = inputs_BT[:, 1:]
    return inputs_BT, labels_BT
