"""The loss of a batch of texts of different lengths.

Shapes: B texts, T places in each, V tokens of the vocabulary.
"""

from torch import Tensor

IGNORE = -100
"""The label of a place where nothing is to be predicted."""


def token_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """The mean of -ln p(label) over all places of the batch that have a label; 0 if none has.

    Scores of any size are fine, and backward can go through the result.

    Shapes:  logits (B, T, V), labels (B, T) -> a scalar
    Units:   nats a token
    """
    raise NotImplementedError("fill in token_loss")
