"""The loss of batches in which only some positions have a label."""

from __future__ import annotations

from torch import Tensor

from frog.config.model import IGNORED_LABEL
from frog.model.functions import linear_cross_entropy


def labelled_loss(x_BTD: Tensor, w_VD: Tensor, labels_BT: Tensor) -> Tensor:
    """Compute the mean cross-entropy of the logits `x @ w.T` over the labelled positions; zero if there are none.

    Logits are computed only at labelled positions: a small part, for a long prompt with a short answer.

    Shapes:  x_BTD (B, T, D), w_VD (V, D), labels_BT (B, T) -> a scalar
    Equals:  `F.cross_entropy(x @ w.T, labels)`, ignoring labels of -100; 0, not NaN, if there are no others.
    """
    chosen_BT = labels_BT != IGNORED_LABEL
    x_ND = x_BTD[chosen_BT]
    if not len(x_ND):  # a rank whose rows are all padding still takes part, with gradients of zero
        return (x_BTD.sum() + w_VD.sum()) * 0.0
    return linear_cross_entropy(x_ND, w_VD, labels_BT[chosen_BT])
