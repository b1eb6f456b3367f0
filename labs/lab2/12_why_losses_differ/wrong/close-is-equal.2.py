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
    """What the losses of all ranks say. The same answer on every rank; model and batch stay as they are."""
    own = gathered(loss_of(model, batch).item())
    first = batch.clone()
    dist.broadcast(first, src=0)
    same = gathered(loss_of(model, first).item())
    cause = "nothing"
    if len(set(same)) > 1:
        cause = "weights"
    elif len({round(loss, 2) for loss in own}) > 1:
        cause = "batches"
    return {"own": own, "same": same, "cause": cause}
