"""A rank's report of one step: the fields of its `step` event, and a log line."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from frog.core.units import format_count
from frog.train.data import Batch
from frog.train.parallel.strategy import Agreement


@dataclass(frozen=True)
class StepReport:
    """Results of one completed step on one rank."""

    batch: Batch
    agreed: Agreement
    grad_norm: float
    """Norm of the whole model's gradient, before clipping."""
    learning_rate: float
    loss_scale: float | None
    """Loss scale of fp16 during the step."""
    skipped: bool
    """True if fp16 overflowed and no weight changed."""
    step_tokens: int
    """Tokens of all ranks in this step."""
    total_tokens: int
    """Tokens of all ranks in all steps so far."""
    start_ns: int
    end_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def tokens_per_s(self) -> float:
        return self.step_tokens / ((self.end_ns - self.start_ns) / 1e9)

    @property
    def loss(self) -> float:
        """Mean loss over this rank's labels; the reduced value is weighted by their number."""
        share = math.fsum(self.batch.loss_weight_A)
        return self.agreed.loss / share if share else self.agreed.loss

    @property
    def grad_norm_local(self) -> float | None:
        """Norm of this rank's own gradient, without the loss scale."""
        norm = self.agreed.grad_norm_local
        return norm / self.loss_scale if norm is not None and self.loss_scale else norm

    def event(self, *, full_tokens_per_s: float | None, memory_bytes: int) -> dict[str, Any]:
        """Return the fields of a `step` event; `full_tokens_per_s` is the throughput at the devices' peak rate."""
        return {
            "step": self.batch.step,
            "loss": self.loss,
            "loss_mean": self.agreed.loss_mean,
            "grad_norm_local": self.grad_norm_local,
            "grad_norm": self.grad_norm,
            "learning_rate": self.learning_rate,
            "tokens": self.total_tokens,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.tokens_per_s / full_tokens_per_s if full_tokens_per_s else None,
            "memory_bytes": memory_bytes,
            "loss_scale": self.loss_scale,
            "skipped": self.skipped,
            "sample_ids": self.batch.ids_N.tolist(),
            "end_ns": self.end_ns,
        }

    @property
    def brief(self) -> str:
        """Text for the progress bar."""
        return f"loss {self.agreed.loss_mean:.3f}, {format_count(self.tokens_per_s)} tokens/s"

    @property
    def line(self) -> str:
        """Text for the log."""
        own = f"gradient norm {self.grad_norm:.4f}"
        if self.grad_norm_local is not None:
            own = f"gradient norm {self.grad_norm_local:.4f} (reduced {self.grad_norm:.4f})"
        return (
            f"step {self.batch.step} | loss {self.loss:.4f} (mean of ranks {self.agreed.loss_mean:.4f}) | {own} "
            f"| learning rate {self.learning_rate:.2e} | {format_count(self.tokens_per_s)} tokens/s"
        )
