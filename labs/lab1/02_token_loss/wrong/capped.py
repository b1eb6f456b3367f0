"""The loss of a batch of texts of different lengths.

Shapes: B texts, T positions in each, V tokens in the vocabulary.
"""

from torch import Tensor

IGNORE = -100
"""The label of a position where there is nothing to predict."""


def token_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Return the mean of -ln p(label) over all positions of the batch that have a label, or 0 if none has one.

    It must work for scores of any size, and backward must be able to go through the result.

    Shapes:  logits (B, T, V), labels (B, T) -> a scalar
    Units:   nats per token
    """
    mask = labels_BT != IGNORE
    p = logits_BTV.softmax(-1)[mask].gather(1, labels_BT[mask].unsqueeze(1))
    return -(p + 1e-9).log().sum() / mask.sum().clamp(min=1)
