"""All ranks agree that loss and gradient are finite before a weight is touched."""

from __future__ import annotations

import math

import torch

from frog.core.errors import NonFiniteError
from frog.core.facts import ErrorFacts, NotFinite
from frog.data import Batch
from frog.parallel.strategy import Agreement
from frog.train.setup import Run


def overflowed(run: Run, batch: Batch, agreed: Agreement, grad_norm: float, scale: float | None) -> bool:
    """Whether fp16 overflowed (`scale` is its loss scale, None for other precisions), so that the step is left out.

    Every rank has the same mean loss and norm here, since both come out of the same all-reduce: all say the same.
    In a step that each takes alone, and of a gradient that is not averaged, each says its own.

    Comm:    none while all is well, or each is alone; else two all-gathers: two numbers, and a rank's sample ids.
    Raises:  NonFiniteError, on every rank, naming the ranks and their samples.
    """
    step, mean_loss = batch.step, agreed.loss_mean
    if math.isfinite(mean_loss) and math.isfinite(grad_norm):
        return False
    if scale is not None and scale > 1 and math.isfinite(mean_loss):
        run.log.say(f"step {step}: the gradient overflowed at loss scale {scale:,.0f}: left out, the scale is halved")
        return True
    culprits = _culprits(run, batch, agreed, grad_norm)
    listing = [
        f"  rank {found.rank}: loss {found.loss}, gradient norm {found.grad_norm}, samples {list(found.sample_ids)}"
        for found in culprits
    ]
    raise NonFiniteError(
        f"step {step}: the loss or the gradient is not finite (mean loss {mean_loss:g}, gradient norm {grad_norm:g}); "
        "no weight was changed\n" + "\n".join(listing or ["  each rank's own are finite: their sum overflowed"]),
        "lower optimizer.learning_rate, or look at those samples: `frog data inspect`; checkpoints are from before",
        ErrorFacts(cause="not_finite", not_finite=tuple(culprits)),
    )


def _culprits(run: Run, batch: Batch, agreed: Agreement, grad_norm: float) -> list[NotFinite]:
    """The ranks whose own loss or gradient is not finite, with their samples."""
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
    """End a step of the scaler: halve the loss scale if the step was left out, else let it count one good step more.

    Of a sharded gradient one rank alone may have seen the overflow, so here all ranks do what they agreed on. `update`
    with a scale goes on counting good steps where its own way would begin again; so that is done too.

    Equals:  what `scaler.update()` does on a rank that saw the overflow itself.
    """
    if not skipped:
        scaler.update()
        return
    scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 0})
