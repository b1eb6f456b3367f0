"""The model, the data and the scores of a run: everything in which pretraining and fine-tuning differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol

from frog.train.data import Batch
from frog.train.model import TinyTransformer
from frog.train.parallel.strategy import Strategy
from frog.train.state import TrainState


class Batches(Protocol):
    """Iterator over one rank's batches, one per step; call `close` after the last."""

    def __next__(self) -> Batch: ...

    def close(self) -> None: ...


class Workload(ABC):
    """The task that the training loop runs."""

    model: TinyTransformer
    """The unsharded model with its loss, on this rank's device. Parameters that require a gradient are trained."""
    num_parameters: int
    data: dict[str, Any]
    """Description of the data for run.json."""
    tokenizer_json: Path
    finetune: dict[str, Any] | None = None
    """Fine-tuning configuration for run.json."""
    flops_per_token: float | None = None
    """Operations per token in a whole step; None without a formula."""

    def renew_model(self) -> None:
        """Create `model` again, with any weights: the last one was distributed over a world that no longer exists."""
        raise NotImplementedError

    @abstractmethod
    def batches(self, start_step: int) -> Batches:
        """Return this rank's batches for steps start_step + 1, start_step + 2, ..."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Describe the model and the data for people: a headline, and lines below it."""

    @abstractmethod
    def score(self, strategy: Strategy, state: TrainState) -> dict[str, Any]:
        """Score the model on held-out data; return fields of the record, at least `eval`. A collective call."""

    def conclude(self, strategy: Strategy, state: TrainState) -> dict[str, Any]:
        """Write the run's results other than checkpoints; return more fields of the record. A collective call."""
        return {}
