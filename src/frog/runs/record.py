"""What run.json and record.json hold: how a run was begun, and how it ended."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from frog.core.schema import Typed

FORMAT = 2
"""Of a run folder: run.json, record.json, events and heartbeats."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class RunStart(Typed, frozen=True, kw_only=True):
    """One start of a run that came to its first step."""

    world_size: Annotated[int, msgspec.Meta(ge=1, lt=2**20)]
    mesh: dict[str, int]
    """The size of each axis."""
    num_nodes: Count
    device: str
    threads: Count
    from_step: Count
    """Steps that were already taken."""
    host: str
    started: str
    """Time of day, UTC."""


class DataSummary(Typed, frozen=True, kw_only=True):
    """The data set that a run is trained on."""

    name: str
    data_sha256: str
    vocab_size: Count
    train_tokens: Count
    heldout_tokens: Count


class RunFile(Typed, frozen=True, kw_only=True):
    """run.json: written as a run begins, and added to whenever it goes on."""

    KIND: ClassVar[str] = "a run's run.json"
    FORMAT: ClassVar[int | None] = FORMAT

    name: str
    created: str
    """Time of day, UTC."""
    argv: list[str]
    config: dict[str, Any]
    """As `frog.config.to_dict` writes it; `from_dict` checks it."""
    num_parameters: Count
    data: DataSummary | None
    """None: an imported model, which was not trained."""
    versions: dict[str, str]
    segments: list[RunStart]
    finetune: dict[str, Any] | None = None
    """Of a fine-tuning: as `frog.config.finetune.finetune_dict` writes it."""

    def setting(self, *keys: str, default: Any = None) -> Any:
        """A field of the configuration."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return default if value is None else value

    def count(self, *keys: str) -> int | None:
        """A field of the configuration that counts from 1; None where it is something else."""
        value = self.setting(*keys)
        return value if type(value) is int and 0 < value < 2**63 else None


class Score(Typed, frozen=True, kw_only=True):
    """What held-out text cost at the end."""

    loss: float | None
    perplexity: float | None
    bits_per_byte: float | None
    tokens: Count


class RecordedError(Typed, frozen=True, kw_only=True):
    """What a run failed with."""

    type: str
    message: str
    rank: Count
    step: Count


class Record(Typed, frozen=True, kw_only=True):
    """record.json: what a run has achieved. And attempt.json: how its last start ended, if that is no achievement.

    A start that failed has no more than its error.
    """

    KIND: ClassVar[str] = "a run's record.json"
    FORMAT: ClassVar[int | None] = FORMAT

    status: Literal["completed", "interrupted", "failed"]
    step: Count
    error: RecordedError | None
    ended: str
    """Time of day, UTC."""
    starts: Count | None = None
    """How many starts the run had then, this one included."""
    loss: float | None = None
    eval: Score | None = None
    weights_sha256: str | None = None
    order_sha256: str | None = None
    tokens: Count | None = None
    wall_s: float | None = None
    tokens_per_s: float | None = None
    token_accuracy: float | None = None
    classification: dict[str, Any] | None = None
    """Of a fine-tuning that classifies: its accuracy, and the confusion matrix."""
    num_trained_parameters: Count | None = None
