"""The loss of a batch of texts of different lengths.

Shapes: B texts, T positions in each, V tokens in the vocabulary.
"""

from torch import Tensor
from torch.nn import functional as F

IGNORE = -100
"""The label of a position where there is nothing to predict."""


def token_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Return the mean of -ln p(label) over all positions of the batch that have a label, or 0 if none has one.

    It must work for scores of any size, and backward must be able to go through the result.

    Shapes:  logits (B, T, V), labels (B, T) -> a scalar
    Units:   nats per token
    """
    total = F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORE, reduction="sum")
    return total / (labels_BT != IGNORE).sum().clamp(min=1)
