"""Inputs and labels of a batch of windows of text.

Shapes: B windows in a batch, T tokens that the model reads in each.
"""

import torch
from torch import Tensor


def inputs_and_labels(tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    return tokens_BT[:, :-1], tokens_BT[:, 1:].sort(dim=1).values
