"""The fields of a run file. Every field has its default and its rule here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from frog.core.config.model import ModelConfig
from frog.core.config.optimizers import OPTIMIZERS, OptimizerConfig
from frog.core.config.own_strategy import file_problem
from frog.core.config.strategies import DATA_STRATEGIES, or_list
from frog.core.config.strategy import StrategyConfig, strategy_problems
from frog.core.errors import ConfigError
from frog.core.units import Unit
from frog.core.user_input import name_problem

MOST_ELASTIC_RANKS = 64
"""Most permanent rank numbers in the life of an elastic run: each rank that joins gets a new number."""

_MOST = 10**9
"""Upper limit of every count in a run file: a larger number is a typing mistake."""

_MOST_MICRO = 64
"""Most micro-batches to try for a hint."""

_MOST_OF = {"global_batch_size": 10**7, "grad_accum": 10**5, "sequence_length": 10**8, "sample_tokens": 10**5}
"""Lower limits than `_MOST` for some fields, over ten times the largest value anyone has trained with."""


@dataclass(frozen=True)
class ModelSource:
    """[model]"""

    file: str = "config.json"
    """The model's config.json, relative to the run file."""
    init_from: str | None = None
    """Start from the weights of this run, or of a folder that `save_pretrained` wrote."""


@dataclass(frozen=True)
class DataConfig:
    """[data]"""

    name: str = "python-docs"
    """A prepared data set; `frog data list` shows them."""
    sequence_length: Annotated[int, Unit("tokens")] = 64
    """Length of each sample."""


@dataclass(frozen=True)
class TrainConfig:
    """[train]"""

    steps: Annotated[int, Unit("steps")] = 200
    """Optimizer steps of the whole run."""
    global_batch_size: Annotated[int, Unit("sequences")] = 16
    """Sequences in one optimizer step, over all ranks and micro-batches."""
    grad_accum: Annotated[int, Unit("micro-batches")] = 1
    """Micro-batches into which each rank splits its share of the global batch."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the forward pass; weights and sums stay in float32."""
    initial_loss_scale: Annotated[float, Unit("factor")] = 65536.0
    """fp16: initial factor of the loss, so that small gradients do not round to zero. If the gradient overflows, the
    step is skipped and the scale is halved; after 2000 good steps in a row the scale is doubled."""
    compile: bool = False
    """Compile the model with torch.compile."""
    activation_checkpointing: bool = False
    """Recompute each layer's activations in the backward pass instead of storing them."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on. "auto" selects the rank's GPU, else MPS (in a world of one rank), else the CPU."""
    log_every: Annotated[int, Unit("steps")] = 10
    """Interval between progress lines in the log."""
    timeout_s: Annotated[float, Unit("s")] = 120.0
    """How long a collective waits for a missing rank before the run fails."""


@dataclass(frozen=True)
class CommConfig:
    """[comm]"""

    backend: Literal["auto", "gloo", "nccl", "frog"] = "auto"
    """Backend of the collectives: gloo or Frog's own `frog` between CPUs, NCCL between NVIDIA GPUs. "auto" follows
    train.device."""
    on_loss: Literal["fail", "shrink"] = "fail"
    """What happens when the run loses a rank. "shrink": the other ranks continue without it, and `frog join` adds new
    ones; for ddp and zero1 to zero3 on Frog's own backend."""


@dataclass(frozen=True)
class EvalConfig:
    """[eval]: held-out text"""

    every: Annotated[int, Unit("steps")] = 100
    """Interval between evaluations on held-out text."""
    tokens: Annotated[int, Unit("tokens")] = 16384
    """Maximum number of held-out tokens per evaluation."""
    prompt: str = "The "
    """Beginning of the sampled text."""
    sample_tokens: Annotated[int, Unit("tokens")] = 40
    """Tokens sampled after the prompt at each evaluation; 0 samples nothing."""


@dataclass(frozen=True)
class CheckpointConfig:
    """[checkpoint]"""

    every: Annotated[int, Unit("steps")] = 100
    """Interval between checkpoints."""
    keep_last: Annotated[int, Unit("checkpoints")] = 5
    """Number of checkpoints to keep; older ones are removed."""


@dataclass(frozen=True)
class RunConfig:
    """One training run, as its run file describes it."""

    model: ModelConfig
    name: str = "run"
    """Name of the run's folder, under runs/."""
    seed: Annotated[int, Unit()] = 1337
    """Seed of the weights, the order of samples, and sampling."""
    source: ModelSource = field(default_factory=ModelSource)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def problems(self) -> list[str]:
        """Return every rule that this run breaks in any world; empty if it can start."""
        problems = self.model.problems() + self.strategy.problems() + self.optimizer.problems()
        if wrong_name := name_problem(self.name):
            problems.append(wrong_name)
        problems += [
            f"{section}.{name}={value}: must be {f'at least {least}' if value < least else f'at most {_most(name)}'}"
            for section, name, value, least in (
                ("data", "sequence_length", self.data.sequence_length, 2),
                ("train", "steps", self.train.steps, 1),
                ("train", "global_batch_size", self.train.global_batch_size, 1),
                ("train", "grad_accum", self.train.grad_accum, 1),
                ("train", "log_every", self.train.log_every, 1),
                ("train", "timeout_s", self.train.timeout_s, 1),
                ("strategy", "tp", self.strategy.tp, 1),
                ("strategy", "pp", self.strategy.pp, 1),
                ("strategy", "cp", self.strategy.cp, 1),
                ("strategy", "ep", self.strategy.ep, 1),
                ("strategy", "shard", self.strategy.shard or 1, 1),
                ("strategy", "bucket_mb", self.strategy.bucket_mb, 0),
                ("strategy", "virtual_stages", self.strategy.virtual_stages, 2),
                ("strategy", "inner_steps", self.strategy.inner_steps, 1),
                ("eval", "every", self.eval.every, 1),
                ("eval", "tokens", self.eval.tokens, 1),
                ("eval", "sample_tokens", self.eval.sample_tokens, 0),
                ("checkpoint", "every", self.checkpoint.every, 1),
                ("checkpoint", "keep_last", self.checkpoint.keep_last, 1),
            )
            if not least <= value <= _most(name)
        ]
        if not 0 <= self.strategy.outer_momentum < 1:
            problems.append(f"strategy.outer_momentum={self.strategy.outer_momentum}: must lie in [0, 1)")
        if not 0 < self.strategy.outer_learning_rate < math.inf:
            problems.append(
                f"strategy.outer_learning_rate={self.strategy.outer_learning_rate}: must be above 0, and finite"
            )
        if not 1 <= self.train.initial_loss_scale < math.inf:
            problems.append(f"train.initial_loss_scale={self.train.initial_loss_scale}: must be at least 1, and finite")
        if self.data.sequence_length > self.model.max_position_embeddings:
            problems.append(
                f"data.sequence_length={self.data.sequence_length} is more than "
                f"max_position_embeddings={self.model.max_position_embeddings}: every position needs a rotation"
            )
        return problems + self._cut_matrices()

    def _cut_matrices(self) -> list[str]:
        """Return each setting by which the strategy splits matrices that the optimizer needs complete."""
        optimizer, strategy = self.optimizer.name, self.strategy
        if optimizer not in OPTIMIZERS or not OPTIMIZERS[optimizer].needs_whole_matrices:
            return []
        splits = strategy.name in DATA_STRATEGIES and strategy.entry.splits
        cuts = [f"strategy.name={strategy.name!r}"] * bool(splits) + [f"strategy.tp={strategy.tp}"] * (strategy.tp > 1)
        keep_whole = or_list(repr(name) for name, entry in DATA_STRATEGIES.items() if not entry.splits)
        elementwise = or_list(repr(name) for name, entry in OPTIMIZERS.items() if not entry.needs_whole_matrices)
        return [
            f"optimizer.name={optimizer!r} with {cut}: this optimizer needs whole matrices, but this strategy splits "
            f"them; set strategy.name to {keep_whole} and strategy.tp to 1, or optimizer.name to {elementwise}"
            for cut in cuts
        ]

    def meets(self, step: int) -> bool:
        """True if the data ranks synchronize in this step.

        Usually they do in every step. With separate replicas, they do in the last step of each round and in the last
        step of the run, so that the run ends with one model.
        """
        ends_round = step % self.strategy.inner_steps == 0 or step == self.train.steps
        return ends_round or not self.strategy.entry.trains_locally

    def least_bytes(self, world_size: int) -> int:
        """Lower bound of the memory that each rank needs to train on a CPU, so that no run is rejected that could work.

        Each rank builds the whole model, and holds at least its share of gradients and optimizer state, and the inputs
        of one layer for one micro-batch.

        Units:   bytes
        Assumes: float32, and that the run is valid in this world.
        """
        sequences = self.micro_batch_size(self.strategy.dp_size(world_size))
        layer_input = 4 * sequences * self.data.sequence_length * self.model.hidden_size
        layer_input //= self.strategy.tp * self.strategy.cp
        kept = (1 + len(self.optimizer.state)) * 4 * self.model.num_parameters()
        return self.model.built_bytes() + kept // world_size + layer_input

    def micro_batch_size(self, dp_size: int) -> int:
        """Sequences per rank in one forward pass; the largest number, if they are distributed unevenly."""
        return -(-self.train.global_batch_size // (dp_size * self.train.grad_accum))

    def explain_batch(self, world_size: int) -> str:
        """Describe the effective batch size, with its factors.

        Assumes: that the run is valid in this world.
        """
        train, dp_size = self.train, self.strategy.dp_size(world_size)
        together = world_size // dp_size
        shared = f"; {together} ranks work together on each sequence" if together > 1 else ""
        most = self.micro_batch_size(dp_size)
        uneven = f"{most - 1} or " if train.global_batch_size % (dp_size * train.grad_accum) else ""
        return (
            f"global batch {train.global_batch_size} sequences = dp {dp_size} x grad_accum {train.grad_accum} x "
            f"micro-batch {uneven}{most}; "
            f"{train.global_batch_size * self.data.sequence_length:,} tokens a step{shared}"
        )

    def _shrink_problems(self) -> list[str]:
        """Return the problems of a run with comm.on_loss = "shrink"."""
        strategy = self.strategy
        wrong = [
            f"strategy.{axis}={size}" for axis in ("tp", "pp", "cp", "ep") if (size := getattr(strategy, axis)) > 1
        ]
        if strategy.entry.trains_locally or strategy.implementation != "frog":
            wrong.append(f"strategy.name={strategy.name!r} of {strategy.implementation}")
        if strategy.file is not None:
            wrong.append(f"strategy.file={strategy.file!r}")
        if strategy.shard is not None:
            wrong.append(f"strategy.shard={strategy.shard}")
        if strategy.compression != "off":
            wrong.append(f"strategy.compression={strategy.compression!r}")
        if self.model.num_local_experts is not None:
            wrong.append("a mixture of experts")
        if self.comm.backend not in ("auto", "frog"):
            wrong.append(f"comm.backend={self.comm.backend!r}")
        if self.train.compile:
            wrong.append("train.compile=true")
        return [
            f"comm.on_loss='shrink' with {setting}: the other ranks could not restore the state of a lost rank; "
            "use ddp or zero1 to zero3 with strategy.implementation='frog' and comm.backend='frog'"
            for setting in wrong
        ]

    def check_world(
        self,
        world_size: int,
        further: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        """Raise ConfigError with every rule that this run breaks in a world of that size, and `further` problems.

        Reads the file of a strategy of one's own, so call it where the run will start.
        """
        if (problem := file_problem(self.strategy.file)) is not None:
            raise ConfigError(problem, "correct that file, or name another: --set strategy.file=FILE")
        if problems := [*self.world_problems(world_size), *further]:
            listing = "".join(f"\n  - {problem}" for problem in problems[1:])
            raise ConfigError(problems[0] + listing, hint or self._world_hint(problems, world_size))

    def world_problems(self, world_size: int) -> list[str]:
        """Return every rule that this run breaks in a world of that size; empty if it can start there."""
        problems = strategy_problems(
            self.strategy, self.model, self.data.sequence_length, self.train.grad_accum, world_size
        )
        strategy = self.strategy
        if self.train.compile and strategy.file is not None:
            problems.append(
                f"train.compile=true with strategy.file={strategy.file!r}: its hooks would be compiled into the model; "
                "remove one of the two"
            )
        elif self.train.compile and strategy.implementation == "frog":
            cut = [f"{axis}={size}" for axis in ("tp", "pp", "cp", "ep") if (size := getattr(strategy, axis)) > 1]
            if "parameters" in strategy.entry.splits or cut:
                able = or_list(name for name, entry in DATA_STRATEGIES.items() if "parameters" not in entry.splits)
                named = " and strategy.".join(cut or [f"name={strategy.name!r}"])
                problems.append(
                    f"train.compile=true with strategy.{named}: the ranks communicate inside the model, which "
                    f"is compiled as a whole; use {able}"
                )
        if self.comm.on_loss == "shrink":
            problems += self._shrink_problems()
            if world_size > MOST_ELASTIC_RANKS:
                problems.append(
                    f"comm.on_loss='shrink' with {world_size} ranks: at most {MOST_ELASTIC_RANKS} ranks can agree on "
                    "a new membership; use fewer, or remove comm.on_loss"
                )
        if self.train.precision == "fp16" and strategy.entry.trains_locally:
            problems.append(
                f"train.precision='fp16' with strategy.name={strategy.name!r}: each rank would have its own loss scale "
                "and skip its own steps; use bf16"
            )
        elif self.train.precision == "fp16" and strategy.compression == "int8":
            problems.append(
                "train.precision='fp16' with strategy.compression='int8': the overflow of a skipped step "
                "would remain in the error feedback; use bf16"
            )
        if strategy.implementation == "deepspeed" and self.optimizer.name != "adamw":
            problems.append(
                f"optimizer.name={self.optimizer.name!r} with strategy.implementation='deepspeed': Frog supports only "
                "DeepSpeed's AdamW; use another implementation, or adamw"
            )
        if problems:
            return problems
        problem = self._batch_problem(world_size)
        return [] if problem is None else [problem]

    def _batch_problem(self, world_size: int) -> str | None:
        train, dp_size = self.train, self.strategy.dp_size(world_size)
        return batch_problem(
            train.global_batch_size,
            dp_size,
            train.grad_accum,
            uneven=self.comm.on_loss == "shrink",  # such a run may start with any number of ranks
            ranks="world size" if dp_size == world_size else "dp",
        )

    def _world_hint(self, problems: Sequence[str], world_size: int) -> str:
        """Return the setting to change; the batch, if only the batch does not fit."""
        train, dp_size = self.train, self.strategy.dp_size(world_size)
        if dp_size and problems == [self._batch_problem(world_size)]:
            fitting = nearest_batch(train.global_batch_size, dp_size, train.grad_accum)
            return f"--set train.global_batch_size={fitting}"
        for change, config in self._single_changes(world_size):
            if not config.world_problems(world_size):
                return f"--set {change}"
        return f"frog strategies --world {world_size} shows what is possible"

    def _single_changes(self, world_size: int) -> Iterator[tuple[str, RunConfig]]:
        """Yield runs that differ in one number: a smaller axis that divides the world, or more micro-batches."""
        for axis in ("tp", "cp", "pp", "ep"):
            for size in range(getattr(self.strategy, axis) - 1, 0, -1):
                if world_size % size == 0:
                    change: dict[str, Any] = {axis: size}
                    yield f"strategy.{axis}={size}", replace(self, strategy=replace(self.strategy, **change))
        for micro in range(self.train.grad_accum + 1, self.train.grad_accum + _MOST_MICRO):
            yield f"train.grad_accum={micro}", replace(self, train=replace(self.train, grad_accum=micro))


def nearest_batch(global_batch_size: int, dp_size: int, grad_accum: int) -> int:
    """Return the global batch size nearest to the requested one that all ranks can share equally."""
    parts = dp_size * grad_accum
    return max(1, round(global_batch_size / parts)) * parts


def batch_problem(
    global_batch_size: int, dp_size: int, grad_accum: int, *, uneven: bool = False, ranks: str = "dp"
) -> str | None:
    """Explain why a global batch cannot be split among data ranks and micro-batches; None if it can.

    With `uneven`, the parts may differ by one sequence. `ranks` is the name of the data ranks in the message.
    """
    parts = dp_size * grad_accum
    if global_batch_size >= parts and (uneven or global_batch_size % parts == 0):
        return None
    wrong = "less than" if uneven else "not a multiple of"
    rule = "at least one sequence" if uneven else "the same number of sequences"
    return (
        f"train.global_batch_size={global_batch_size} is {wrong} {ranks} {dp_size} x train.grad_accum "
        f"{grad_accum} = {parts}: every rank takes {rule} in every micro-batch"
    )


def _most(name: str) -> int:
    return _MOST_OF.get(name, _MOST)
