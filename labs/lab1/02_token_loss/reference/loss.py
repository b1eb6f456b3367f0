"""The loss of a batch of texts of different lengths.

Shapes: B texts, T places in each, V tokens of the vocabulary.
"""

from torch import Tensor
from torch.nn import functional as F

IGNORE = -100
"""The label of a place where nothing is to be predicted."""


def token_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """The mean of -ln p(label) over all places of the batch that have a label; 0 if none has."""
    total = F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORE, reduction="sum")
    return total / (labels_BT != IGNORE).sum().clamp(min=1)
