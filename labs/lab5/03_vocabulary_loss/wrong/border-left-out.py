"""Cross-entropy of logits whose vocabulary is divided over the ranks.

Shapes: N positions, V vocabulary, v this rank's part of V.
"""

import torch
import torch.distributed as dist
from linear import SumOfRanks  # exercise 5.1
from torch import Tensor

IGNORED = -100


def largest_logit(logits_Nv: Tensor) -> Tensor:
    """Return each position's largest logit in the whole vocabulary, without a gradient.

    Shapes:  (N, v) -> (N,)
    Comm:    one all-reduce of N numbers.
    """
    m = logits_Nv.detach().amax(1)
    dist.all_reduce(m, op=dist.ReduceOp.MAX)
    return m


def sum_of_exponentials(logits_Nv: Tensor, largest_N: Tensor) -> Tensor:
    """Return each position's sum of exp(logit - largest) over the whole vocabulary.

    Shapes:  (N, v), (N,) -> (N,)
    Comm:    one all-reduce of N numbers.
    """
    return SumOfRanks.apply((logits_Nv - largest_N[:, None]).exp().sum(1))


def logit_of_label(logits_Nv: Tensor, labels_N: Tensor, first: int) -> Tensor:
    """Return the logit of each position's label, whichever rank has it; 0 where the label is IGNORED.

    first:   the token of this rank's first logit. The ranks' parts of the vocabulary may differ in size.
    Shapes:  (N, v), (N,) -> (N,)
    Comm:    one all-reduce of N numbers.
    """
    v = logits_Nv.shape[1]
    own = labels_N - first
    mine = (own > 0) & (own < v)
    return SumOfRanks.apply(logits_Nv.gather(1, own.clamp(0, v - 1)[:, None])[:, 0] * mine)


def vocabulary_loss(logits_Nv: Tensor, labels_N: Tensor, first: int) -> Tensor:
    """Return the mean cross-entropy of the positions whose label is not IGNORED; at least one is not.

    Equals:  `cross_entropy(logits_NV, labels_N)` on every rank, and backward gives each rank its part of the gradient.
    Comm:    forward 3 N numbers; backward none.
    """
    m = largest_logit(logits_Nv)
    per = sum_of_exponentials(logits_Nv, m).log() + m - logit_of_label(logits_Nv, labels_N, first)
    return per[labels_N != IGNORED].mean()
