"""An experiment on a run: why do the ranks' losses differ?"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def gathered(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def why_losses_differ(
    model: torch.nn.Module, batch: torch.Tensor, loss_of: Callable[..., torch.Tensor]
) -> dict[str, Any]:
    """Explain the losses of all ranks, with the same answer on every rank. Do not change model or batch.

    batch:    this rank's tokens, (samples, length); the same shape on all ranks.
    loss_of:  `loss_of(model, batch)` returns the mean loss over the batch, a scalar. The same program on all ranks.

    Returns  "own": the loss of each rank on its own batch, a list in order of ranks;
             "same": the loss of each rank on rank 0's batch;
             "cause": "weights" if the ranks' weights differ (whatever else does), "batches" if only the batches do,
             "nothing" if neither does.
    """
    model.eval()
    own = gathered(loss_of(model, batch).item())
    first = batch.clone()
    dist.broadcast(first, src=0)
    same = gathered(loss_of(model, first).item())
    cause = "weights" if len(set(same)) > 1 else "batches" if len(set(own)) > 1 else "nothing"
    return {"own": own, "same": same, "cause": cause}
