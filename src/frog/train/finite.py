"""Agreement of all ranks, before any weight changes, that loss and gradient are finite."""

from __future__ import annotations

import math

import torch

from frog.core.errors import ErrorFacts, NonFiniteError, NotFinite
from frog.train.data import Batch
from frog.train.parallel.strategy import Agreement
from frog.train.setup import Run


def overflowed(run: Run, batch: Batch, agreed: Agreement, grad_norm: float, scale: float | None) -> bool:
    """True if fp16 overflowed and the step must be skipped. `scale` is the loss scale, None for other precisions.

    All ranks have the same mean loss and norm, since both come from the same all-reduce, so all report the same error.
    In a step without communication, or if the gradient is not averaged, each rank reports its own values.

    Comm:    none if all values are finite or the step does not communicate; else two all-gathers: two numbers, and
             the sample ids of each rank.
    Raises:  NonFiniteError, on every rank, with the ranks and their samples.
    """
    step, mean_loss = batch.step, agreed.loss_mean
    if math.isfinite(mean_loss) and math.isfinite(grad_norm):
        return False
    if scale is not None and scale > 1 and math.isfinite(mean_loss):
        run.log.say(f"step {step}: the gradient overflowed at loss scale {scale:,.0f}: step skipped, scale halved")
        return True
    culprits = _culprits(run, batch, agreed, grad_norm)
    listing = [
        f"  rank {culprit.rank}: loss {culprit.loss}, gradient norm {culprit.grad_norm}, "
        f"samples {list(culprit.sample_ids)}"
        for culprit in culprits
    ]
    raise NonFiniteError(
        f"step {step}: the loss or the gradient is not finite (mean loss {mean_loss:g}, gradient norm {grad_norm:g}); "
        "no weight was changed\n" + "\n".join(listing or ["  each rank's own values are finite: their sum overflowed"]),
        "lower optimizer.learning_rate, or look at these samples: `frog data inspect`; checkpoints predate this step",
        ErrorFacts(cause="not_finite", not_finite=tuple(culprits)),
    )


def _culprits(run: Run, batch: Batch, agreed: Agreement, grad_norm: float) -> list[NotFinite]:
    """Return the ranks whose own loss or gradient is not finite, with their samples."""
    alone = agreed.alone or (agreed.own_gradient and math.isfinite(agreed.loss_mean))
    norm = grad_norm if agreed.own_gradient or alone else agreed.grad_norm_local or 0.0
    own, ids_N = torch.tensor([agreed.loss, norm]), torch.from_numpy(batch.ids_N)
    if alone:
        rows = {run.world.rank: (own.tolist(), ids_N.tolist())}
    else:
        gathered = run.world.gather_rows(own).tolist(), run.world.gather_rows(ids_N).tolist()
        rows = dict(enumerate(zip(*gathered, strict=True)))
    return [
        NotFinite(
            rank=rank,
            loss=f"{loss:g}",
            grad_norm=f"{norm:g}",
            of_loss=not math.isfinite(loss),
            sample_ids=tuple(ids),
        )
        for rank, ((loss, norm), ids) in rows.items()
        if rank in run.mesh.readers and not (math.isfinite(loss) and math.isfinite(norm))
    ]


def update_scale(scaler: torch.amp.GradScaler, skipped: bool) -> None:
    """End a step of the scaler: halve the loss scale if the step was skipped, else count one more good step.

    With a sharded gradient, a single rank may have seen the overflow, so all ranks act on what they agreed. `update`
    with an explicit scale does not reset the count of good steps, so this function resets it.

    Equals:  `scaler.update()` on a rank that saw the overflow itself.
    """
    if not skipped:
        scaler.update()
        return
    scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 0})
