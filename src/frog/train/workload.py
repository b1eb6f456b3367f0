"""What a run trains, on what, and how that is scored: all that training and fine-tuning differ in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol

from frog.data import Batch
from frog.model import TinyTransformer
from frog.parallel.strategy import Strategy
from frog.train.state import TrainState


class Batches(Protocol):
    """The batches of one rank, one for each step; closed when no more are wanted."""

    def __next__(self) -> Batch: ...

    def close(self) -> None: ...


class Workload(ABC):
    """What the training loop is given to train."""

    model: TinyTransformer
    """Whole and on this rank's device, with its loss. What wants a gradient is trained, the rest stays as it is."""
    num_parameters: int
    data: dict[str, Any]
    """What run.json keeps of the data."""
    tokenizer_json: Path
    finetune: dict[str, Any] | None = None
    """What run.json keeps of a fine-tuning."""
    flops_per_token: float | None = None
    """Of a whole step; None where no formula says."""

    def renew_model(self) -> None:
        """Make `model` anew, with whatever weights: the one before was spread over a world that is no more."""
        raise NotImplementedError

    @abstractmethod
    def batches(self, start_step: int) -> Batches:
        """This rank's batches of the steps start_step + 1, start_step + 2, ..."""

    @abstractmethod
    def describe(self) -> list[str]:
        """What is about to be trained on what, for people: a headline, and lines below it."""

    @abstractmethod
    def score(self, strategy: Strategy, state: TrainState) -> dict[str, Any]:
        """Score the model on what was held out: fields of the record, `eval` at least. A collective call."""

    def conclude(self, strategy: Strategy, state: TrainState) -> dict[str, Any]:
        """Leave behind what a run leaves beside its checkpoints; more fields of the record. A collective call."""
        return {}
