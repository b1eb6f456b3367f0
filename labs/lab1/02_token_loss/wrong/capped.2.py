"""The loss of a batch of texts of different lengths.

Shapes: B texts, T places in each, V tokens of the vocabulary.
"""

from torch import Tensor

IGNORE = -100
"""The label of a place where nothing is to be predicted."""


def token_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """The mean of -ln p(label) over all places of the batch that have a label; 0 if none has."""
    mask = labels_BT != IGNORE
    p = logits_BTV.softmax(-1)[mask].gather(1, labels_BT[mask].unsqueeze(1))
    return -p.clamp(min=1e-7).log().sum() / mask.sum().clamp(min=1)
