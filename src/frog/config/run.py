"""What a run file may say. Every field has its default and its rule here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from frog.config.model import ModelConfig
from frog.config.optimizers import OPTIMIZERS, OptimizerConfig
from frog.config.strategies import DATA_STRATEGIES, or_list
from frog.config.strategy import StrategyConfig, strategy_problems
from frog.config.units import Unit
from frog.core.errors import ConfigError
from frog.core.names import name_problem

MOST_ELASTIC_RANKS = 64
"""Over the life of a run that goes on when ranks are lost: each rank that joins gets a number of its own."""

_MOST = 10**9
"""Of whatever is counted in a run file: what lies above is a slip of the pen."""

_MOST_OF = {"global_batch_size": 10**7, "grad_accum": 10**5, "sequence_length": 10**8, "sample_tokens": 10**5}
"""Where less is a slip already: ten times the largest that anybody has trained with, and more."""


@dataclass(frozen=True)
class ModelSource:
    """[model]"""

    file: str = "config.json"
    """A config.json, looked for beside the run file."""
    init_from: str | None = None
    """Start from these weights: a run, or a folder that `save_pretrained` wrote."""


@dataclass(frozen=True)
class DataConfig:
    """[data]"""

    name: str = "python-docs"
    """A prepared data set: `frog data list`."""
    sequence_length: Annotated[int, Unit("tokens")] = 64
    """Of each sample."""


@dataclass(frozen=True)
class TrainConfig:
    """[train]"""

    steps: Annotated[int, Unit("steps")] = 200
    """Optimizer steps of the whole run."""
    global_batch_size: Annotated[int, Unit("sequences")] = 16
    """Sequences in one optimizer step, over all ranks and micro-batches."""
    grad_accum: Annotated[int, Unit("micro-batches")] = 1
    """Micro-batches into which each rank cuts its share of the global batch."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the forward pass; weights and sums stay in float32."""
    initial_loss_scale: Annotated[float, Unit("factor")] = 65536.0
    """fp16: what the loss is multiplied by at first, so that small gradients do not round to zero. Where the gradient
    overflows the step is left out and the scale halved; after 2000 good steps in a row it is doubled."""
    compile: bool = False
    """Whether the model goes through torch.compile."""
    activation_checkpointing: bool = False
    """Whether a layer's activations are computed again in the backward pass instead of kept."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """What it runs on. "auto" takes the rank's GPU, for a world of one MPS, else the CPU."""
    log_every: Annotated[int, Unit("steps")] = 10
    """How often a line of the log says where the run is."""
    timeout_s: Annotated[float, Unit("s")] = 120.0
    """How long a collective waits for a missing rank before the run fails."""


@dataclass(frozen=True)
class CommConfig:
    """[comm]"""

    backend: Literal["auto", "gloo", "nccl", "frog"] = "auto"
    """What carries the collectives: gloo or our own `frog` between CPUs, NCCL between NVIDIA GPUs. "auto" follows
    train.device."""
    on_loss: Literal["fail", "shrink"] = "fail"
    """What becomes of a run that loses a rank. "shrink": the others go on without it, and `frog join` brings new ones;
    for ddp and zero1 to zero3 on our own backend."""


@dataclass(frozen=True)
class EvalConfig:
    """[eval]: held-out text"""

    every: Annotated[int, Unit("steps")] = 100
    """How often held-out text is scored."""
    tokens: Annotated[int, Unit("tokens")] = 16384
    """How many held-out tokens are scored, at most."""
    prompt: str = "The "
    """How the sampled text begins."""
    sample_tokens: Annotated[int, Unit("tokens")] = 40
    """How many tokens are sampled after the prompt at each evaluation; with 0 nothing is sampled."""


@dataclass(frozen=True)
class CheckpointConfig:
    """[checkpoint]"""

    every: Annotated[int, Unit("steps")] = 100
    """How often a checkpoint is saved."""
    keep_last: Annotated[int, Unit("checkpoints")] = 5
    """How many stay; older ones are removed."""


@dataclass(frozen=True)
class RunConfig:
    """One training run, as its run file asks for it."""

    model: ModelConfig
    name: str = "run"
    """Of the run's folder, under runs/."""
    seed: Annotated[int, Unit()] = 1337
    """Of the weights, the order of samples, and what is sampled."""
    source: ModelSource = field(default_factory=ModelSource)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def problems(self) -> list[str]:
        """Every rule that this run breaks whatever its world; empty if it can start."""
        found = self.model.problems() + self.strategy.problems() + self.optimizer.problems()
        if wrong_name := name_problem(self.name):
            found.append(wrong_name)
        found += [
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
            found.append(f"strategy.outer_momentum={self.strategy.outer_momentum}: must lie in [0, 1)")
        if not 0 < self.strategy.outer_learning_rate < math.inf:
            found.append(
                f"strategy.outer_learning_rate={self.strategy.outer_learning_rate}: must be above 0, and finite"
            )
        if not 1 <= self.train.initial_loss_scale < math.inf:
            found.append(f"train.initial_loss_scale={self.train.initial_loss_scale}: must be at least 1, and finite")
        if self.data.sequence_length > self.model.max_position_embeddings:
            found.append(
                f"data.sequence_length={self.data.sequence_length} is more than "
                f"max_position_embeddings={self.model.max_position_embeddings}: every position needs its rotation"
            )
        return found + self._cut_matrices()

    def _cut_matrices(self) -> list[str]:
        """Each setting by which the strategy cuts matrices that the optimizer needs whole."""
        optimizer, strategy = self.optimizer.name, self.strategy
        if optimizer not in OPTIMIZERS or not OPTIMIZERS[optimizer].needs_whole_matrices:
            return []
        splits = strategy.name in DATA_STRATEGIES and strategy.entry.splits
        cuts = [f"strategy.name={strategy.name!r}"] * bool(splits) + [f"strategy.tp={strategy.tp}"] * (strategy.tp > 1)
        keep_whole = or_list(repr(name) for name, entry in DATA_STRATEGIES.items() if not entry.splits)
        elementwise = or_list(repr(name) for name, entry in OPTIMIZERS.items() if not entry.needs_whole_matrices)
        return [
            f"optimizer.name={optimizer!r} with {cut}: this optimizer needs whole matrices, this strategy cuts them; "
            f"set strategy.name to {keep_whole} and strategy.tp to 1, or optimizer.name to {elementwise}"
            for cut in cuts
        ]

    def meets(self, step: int) -> bool:
        """Whether the data ranks meet in this step: always, but where they go apart. Then in the last step of a round,
        and in the run's last, so that a run ends with one model.
        """
        return not self.strategy.entry.apart or step % self.strategy.inner_steps == 0 or step == self.train.steps

    def least_bytes(self, world_size: int) -> int:
        """Memory that each rank surely takes when it trains on a CPU: less than it will, so that no run is refused
        that can be. Each builds the whole model; of gradients and optimizer state a rank has its share at least, and of
        a micro-batch what goes into a layer.

        Units:   bytes
        Assumes: float32, and that the run can be in this world.
        """
        sequences = self.micro_batch_size(self.strategy.dp_size(world_size))
        layer_input = 4 * sequences * self.data.sequence_length * self.model.hidden_size
        layer_input //= self.strategy.tp * self.strategy.cp
        kept = (1 + len(self.optimizer.state)) * 4 * self.model.num_parameters()
        return self.model.built_bytes() + kept // world_size + layer_input

    def micro_batch_size(self, dp_size: int) -> int:
        """Sequences that one rank takes in one forward pass; the most of any, where they are dealt unevenly."""
        return -(-self.train.global_batch_size // (dp_size * self.train.grad_accum))

    def explain_batch(self, world_size: int) -> str:
        """The effective batch size in words, with the numbers that it is the product of.

        Assumes: that the run can be in this world.
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
        """What a run that goes on without lost ranks cannot do."""
        strategy = self.strategy
        wrong = [
            f"strategy.{axis}={size}" for axis in ("tp", "pp", "cp", "ep") if (size := getattr(strategy, axis)) > 1
        ]
        if strategy.entry.apart or strategy.implementation != "frog":
            wrong.append(f"strategy.name={strategy.name!r} of {strategy.implementation}")
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
            f"comm.on_loss='shrink' with {one}: what a lost rank held could not be had from the others; take ddp "
            "or zero1 to zero3 of frog, on backend frog"
            for one in wrong
        ]

    def check_world(
        self,
        world_size: int,
        further: Sequence[str] = (),
        hint: str = "change one of these numbers: --set strategy.tp=…, train.grad_accum=…",
    ) -> None:
        """Raise ConfigError with every rule that this run breaks in a world of that size, and `further` ones."""
        if problems := [*self.world_problems(world_size), *further]:
            listing = "".join(f"\n  - {problem}" for problem in problems[1:])
            raise ConfigError(problems[0] + listing, hint)

    def world_problems(self, world_size: int) -> list[str]:
        """Every rule that this run breaks in a world of that size; empty if it can start there."""
        found = strategy_problems(
            self.strategy, self.model, self.data.sequence_length, self.train.grad_accum, world_size
        )
        strategy = self.strategy
        if self.train.compile and strategy.implementation == "frog":
            cut = [f"{axis}={size}" for axis in ("tp", "pp", "cp", "ep") if (size := getattr(strategy, axis)) > 1]
            if "parameters" in strategy.entry.splits or cut:
                able = or_list(name for name, entry in DATA_STRATEGIES.items() if "parameters" not in entry.splits)
                named = " and strategy.".join(cut or [f"name={strategy.name!r}"])
                found.append(
                    f"train.compile=true with strategy.{named}: the ranks communicate inside the model, which is "
                    f"compiled whole; take {able}"
                )
        if self.comm.on_loss == "shrink":
            found += self._shrink_problems()
            if world_size > MOST_ELASTIC_RANKS:
                found.append(
                    f"comm.on_loss='shrink' with {world_size} ranks: at most {MOST_ELASTIC_RANKS} can agree on who is "
                    "left; take fewer, or leave it out"
                )
        if self.train.precision == "fp16" and strategy.entry.apart:
            found.append(
                f"train.precision='fp16' with strategy.name={strategy.name!r}: each rank would have a loss scale "
                "of its own and leave out its own steps; take bf16"
            )
        elif self.train.precision == "fp16" and strategy.compression == "int8":
            found.append(
                "train.precision='fp16' with strategy.compression='int8': the overflow of a step that is left out "
                "would stay in what the roundings keep; take bf16"
            )
        if strategy.implementation == "deepspeed" and self.optimizer.name != "adamw":
            found.append(
                f"optimizer.name={self.optimizer.name!r} with strategy.implementation='deepspeed': Frog drives "
                "DeepSpeed's AdamW alone; take another implementation, or adamw"
            )
        if found:
            return found
        train, dp_size = self.train, self.strategy.dp_size(world_size)
        problem = batch_problem(
            train.global_batch_size,
            dp_size,
            train.grad_accum,
            uneven=self.comm.on_loss == "shrink",  # such a run may start with any number of ranks
            ranks="world size" if dp_size == world_size else "dp",
        )
        return [] if problem is None else [problem]


def batch_problem(
    global_batch_size: int, dp_size: int, grad_accum: int, *, uneven: bool = False, ranks: str = "dp"
) -> str | None:
    """Explain why a global batch cannot be split among data ranks and micro-batches; None if it can.

    Where `uneven` is allowed, the parts may differ by one sequence. `ranks` is what the reader calls the data ranks.
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
