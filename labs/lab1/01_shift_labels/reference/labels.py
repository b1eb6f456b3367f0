"""Inputs and labels of a batch of windows of text.

Shapes: B windows in a batch, T tokens that the model reads in each.
"""

from torch import Tensor


def inputs_and_labels(tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens that a model reads, and for each of them the token that follows: its label.

    Shapes:  tokens (B, T+1) -> inputs (B, T), labels (B, T)
    """
    inputs_BT = tokens_BT[:, :-1]
    labels_BT = tokens_BT[:, 1:]
    return inputs_BT, labels_BT
