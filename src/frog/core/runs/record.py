"""The content of run.json and record.json: how a run started, and how it ended."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from frog.core.schema import Typed

FORMAT = 2
"""Format version of a run folder: run.json, record.json, events and heartbeats."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class RunStart(Typed, frozen=True, kw_only=True):
    """One start of a run that reached its first step."""

    world_size: Annotated[int, msgspec.Meta(ge=1, lt=2**20)]
    mesh: dict[str, int]
    """The size of each axis."""
    num_nodes: Count
    device: str
    threads: Count
    from_step: Count
    """Steps already completed."""
    host: str
    started: str
    """UTC time."""


class DataSummary(Typed, frozen=True, kw_only=True):
    """The training data of a run."""

    name: str
    data_sha256: str
    vocab_size: Count
    train_tokens: Count
    heldout_tokens: Count


class ProgramInfo(Typed, frozen=True, kw_only=True):
    """A program that is not Frog's, as `frog run` started it on every rank."""

    command: list[str]
    kind: Literal["script", "module", "command"]
    cwd: str
    environment: dict[str, str]
    """Variables of launchers and libraries."""


class RunFile(Typed, frozen=True, kw_only=True):
    """run.json: written when a run starts, and extended when it resumes."""

    KIND: ClassVar[str] = "a run's run.json"
    FORMAT: ClassVar[int | None] = FORMAT

    name: str
    created: str
    """UTC time."""
    argv: list[str]
    config: dict[str, Any]
    """Output of `frog.core.config.to_dict`; `from_dict` checks it."""
    num_parameters: Count
    data: DataSummary | None
    """None for an imported model."""
    versions: dict[str, str]
    segments: list[RunStart]
    finetune: dict[str, Any] | None = None
    """Fine-tuned runs: output of `frog.core.config.finetune.finetune_dict`."""
    program: ProgramInfo | None = None
    """A program that is not Frog's: `config`, `data` and `segments` are empty."""
    simulated: bool = False
    """True if `frog plan simulate` calculated all events, and nothing ran."""

    def setting(self, *keys: str, default: Any = None) -> Any:
        """Return a field of the configuration."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return default if value is None else value

    def count(self, *keys: str) -> int | None:
        """Return a field of the configuration if it is a positive integer, else None."""
        value = self.setting(*keys)
        return value if type(value) is int and 0 < value < 2**63 else None


class Score(Typed, frozen=True, kw_only=True):
    """Final scores on held-out text."""

    loss: float | None
    perplexity: float | None
    bits_per_byte: float | None
    tokens: Count


class RecordedError(Typed, frozen=True, kw_only=True):
    """The error of a failed run."""

    type: str
    message: str
    rank: Count
    step: Count


class Record(Typed, frozen=True, kw_only=True):
    """record.json: the farthest result of a run. Also attempt.json: how the last start ended, if it got less far.

    A failed start has only its error.
    """

    KIND: ClassVar[str] = "a run's record.json"
    FORMAT: ClassVar[int | None] = FORMAT

    status: Literal["completed", "interrupted", "failed"]
    step: Count
    error: RecordedError | None
    ended: str
    """UTC time."""
    starts: Count | None = None
    """Number of starts of the run up to then, including this one."""
    loss: float | None = None
    eval: Score | None = None
    weights_sha256: str | None = None
    order_sha256: str | None = None
    tokens: Count | None = None
    wall_s: float | None = None
    tokens_per_s: float | None = None
    token_accuracy: float | None = None
    classification: dict[str, Any] | None = None
    """Fine-tuned classifiers: accuracy and confusion matrix."""
    num_trained_parameters: Count | None = None
