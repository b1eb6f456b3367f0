"""Inputs and labels of a batch of windows of text.

Shapes: B windows of a batch, T tokens that are read in each.
"""

from torch import Tensor


def inputs_and_labels(tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    """What a model reads, and what it is to say at each place: the token that follows.

    Shapes:  tokens (B, T+1) -> inputs (B, T), labels (B, T)
    """
    inputs_BT = tokens_BT[:, :-1]
    labels_BT = tokens_BT[:, 1:]
    return inputs_BT, labels_BT
