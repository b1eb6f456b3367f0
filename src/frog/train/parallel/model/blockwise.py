"""Blockwise attention: attend to some of the keys, and merge such results into attention to all of them.

All sums are in float32 whatever the inputs' dtype. The scores are materialized: this is for reading, and for sequences
of a few thousand positions per rank; it needs t * s numbers per head, where a fused kernel would need none.

Source:  Dao 2023 (FlashAttention-2), sections 3.1.1 and 3.1.2, with the blocks on different ranks.
Shapes:  B batch, t queries, s keys, K key/value heads, G query heads that share one, C head width, M = G * t: the
         queries of all heads that attend to the same keys, in one matrix.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attend(q_BKGtC: Tensor, k_BKsC: Tensor, v_BKsC: Tensor, is_own: bool) -> tuple[Tensor, Tensor]:
    """Compute attention to these keys only, and the log of the sum of its exponentials, which is needed to merge.

    Shapes:  -> (B, K, G, t, C) and (B, K, G, t), in float32
    """
    scores_BKMs = scores(q_BKGtC, k_BKsC, is_own)
    log_sum_BKM = scores_BKMs.logsumexp(dim=-1)
    weights_BKMs = scores_BKMs.sub_(log_sum_BKM.unsqueeze(-1)).exp_()
    y_BKMC = weights_BKMs @ wide(v_BKsC)
    return y_BKMC.view(q_BKGtC.shape), log_sum_BKM.view(q_BKGtC.shape[:-1])


def scores(q_BKGtC: Tensor, k_BKsC: Tensor, is_own: bool) -> Tensor:
    """Compute q k^T / sqrt(C), minus infinity where a rank's own keys are later than its queries.

    Shapes:  -> (B, K, M, s), M = G * t: the queries of all heads that share these keys; in float32
    """
    scores_BKMs = wide(q_BKGtC).flatten(2, 3) @ wide(k_BKsC).mT
    scores_BKMs.mul_(q_BKGtC.shape[-1] ** -0.5)
    if is_own:
        t, s = q_BKGtC.shape[3], k_BKsC.shape[2]
        later_ts = torch.ones(t, s, dtype=torch.bool, device=scores_BKMs.device).triu_(1)
        scores_BKMs.view(*q_BKGtC.shape[:-1], s).masked_fill_(later_ts, -math.inf)
    return scores_BKMs


def merge(y: Tensor, log_sum: Tensor, part: Tensor, log_part: Tensor) -> None:
    """Merge attention to further keys into `y` and `log_sum`, in place, weighted by the sums of the exponentials."""
    together = torch.logaddexp(log_sum, log_part)
    y.mul_((log_sum - together).exp_().unsqueeze(-1)).add_(part * (log_part - together).exp_().unsqueeze(-1))
    log_sum.copy_(together)


def add_gradients(
    dkv: Tensor, grad_BKGtC: Tensor, rows: tuple[Tensor, Tensor], qkv: tuple[Tensor, Tensor, Tensor], is_own: bool
) -> Tensor:
    """Add to `dkv` the gradients of these keys and values from these queries; return the gradient of the queries.

    The weights are recomputed from the scores and the log of their sum over all keys. With w the weights and g the
    gradient of y: dv = w^T g; the scores get w (g v^T - delta), where delta, the sum over columns of g y, is the
    softmax's correction.

    Shapes:  dkv (2, B, K, s, C), grad (B, K, G, t, C), rows two of (B, K, G, t): the log of the sum, and delta
    """
    q_BKGtC, k_BKsC, v_BKsC = qkv
    log_sum_BKM1, delta_BKM1 = (row.flatten(2, 3).unsqueeze(-1) for row in rows)
    grad_BKMC = grad_BKGtC.flatten(2, 3)
    weights_BKMs = scores(q_BKGtC, k_BKsC, is_own).sub_(log_sum_BKM1).exp_()
    dkv[1] += weights_BKMs.mT @ grad_BKMC
    dscores_BKMs = (grad_BKMC @ wide(v_BKsC).mT).sub_(delta_BKM1).mul_(weights_BKMs).mul_(q_BKGtC.shape[-1] ** -0.5)
    dkv[0] += dscores_BKMs.mT @ wide(q_BKGtC).flatten(2, 3)
    return (dscores_BKMs @ wide(k_BKsC)).view(q_BKGtC.shape)


def wide(x: Tensor) -> Tensor:
    """Return `x` in float32, the dtype of sums; float64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
