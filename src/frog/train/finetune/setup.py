"""What must stand before the ranks of a fine-tuning meet: its configuration, its base, its data, its task."""

from __future__ import annotations

import argparse
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from frog.config import (
    CheckpointConfig,
    DataConfig,
    ModelSource,
    OptimizerConfig,
    RunConfig,
    TrainConfig,
    from_dict,
    to_dict,
)
from frog.config.finetune import FinetuneConfig, parse_lora
from frog.config.load import override_dict
from frog.core.errors import ConfigError, RunError, UsageError
from frog.data import load_tokenizer
from frog.data.labelled import LabelledSet, read_labelled
from frog.model import TinyTransformer
from frog.model.lora import target_names
from frog.runs.folder import RunFolder, find_run
from frog.train.finetune.arguments import DEFAULTS, with_defaults
from frog.train.finetune.task import Task
from frog.train.state import weights_sha256
from frog.train.trained import load_base, load_trained, read_finetune

_SETTABLE = ("train.", "strategy.", "optimizer.", "checkpoint.")
_MAY_CHANGE = ("epochs",)
"""The options, --set apart, that a resumed fine-tuning takes anew."""


@dataclass(frozen=True)
class Preparation:
    """What a fine-tuning needs before its ranks meet."""

    config: RunConfig
    tuning: FinetuneConfig
    base: TinyTransformer
    data: LabelledSet
    task: Task
    tokenizer_json: Path
    resume: RunFolder | None = None
    """The run to go on with."""


def prepare(args: argparse.Namespace) -> Preparation:
    """As the arguments say: of a new fine-tuning, or of one that is resumed."""
    if args.resume is not None:
        return _prepare_resumed(args)
    if args.run is None:
        raise UsageError("nothing to fine-tune", "name the base, a trained or imported run: frog finetune RUN")
    args, base = with_defaults(args), find_run(args.run)
    if read_finetune(base) is not None:
        raise UsageError(f"{base.path}: is itself fine-tuned", "name its base, or export it merged and import that")
    data = read_labelled(args.data, args.heldout)
    config = run_config(args, base, data)
    model, _, step = load_trained(base, args.step)
    tuning = finetune_config(args, base, step, weights_sha256(model.named_parameters()), data)
    target_names(model, tuning.lora)  # what cannot be is refused before there is a run folder
    task = read_task(base, tuning, config.data.sequence_length)
    return Preparation(config, tuning, model, data, task, base.tokenizer_json)


def _prepare_resumed(args: argparse.Namespace) -> Preparation:
    given = [name for name in ("run", "step", "max_length", "name", *DEFAULTS) if getattr(args, name) is not None]
    if extra := [name for name in given if name not in _MAY_CHANGE]:
        raise UsageError(
            f"--resume {args.resume}, and {', '.join(extra)}: a resumed fine-tuning has its own",
            "leave those out; --epochs and --set still override what they name",
        )
    if args.go_on:
        raise UsageError("both --resume and --continue", "--resume RUN names the run; --continue takes --name")
    folder = find_run(args.resume)
    tuning = read_finetune(folder)
    if tuning is None:
        raise UsageError(f"{folder.path}: is no fine-tuning", f"go on with: {folder.resume_command}")
    tuning = dataclasses.replace(tuning, epochs=args.epochs or tuning.epochs)
    data = read_labelled(tuning.data, tuning.heldout)
    check_settings(args.set)
    config = with_epochs(from_dict(override_dict(folder.read_run_json().config, args.set)), tuning.epochs, data)
    task = read_task(folder, tuning, config.data.sequence_length)
    return Preparation(config, tuning, load_base(folder, tuning), data, task, folder.tokenizer_json, folder)


def run_config(args: argparse.Namespace, base: RunFolder, data: LabelledSet) -> RunConfig:
    """The run's configuration: the base's model, this fine-tuning's numbers, and what --set changes.

    Raises:  ConfigError with every mistake.
    """
    check_settings(args.set)
    theirs = from_dict(base.read_run_json().config)
    length = args.max_length if args.max_length is not None else theirs.model.max_position_embeddings
    steps = args.epochs * -(-len(data.train) // args.batch_size)
    plain = RunConfig(
        model=theirs.model,
        name=args.name or re.sub(r"[^A-Za-z0-9._-]+", "-", f"{base.path.name}-{data.name}"),
        seed=args.seed,
        source=ModelSource(init_from=str(base.path)),
        data=DataConfig(name=data.name, sequence_length=length),
        train=TrainConfig(steps=steps, global_batch_size=args.batch_size),
        optimizer=OptimizerConfig(
            learning_rate=args.learning_rate,
            min_learning_rate=0.0,
            warmup_steps=min(20, steps // 10),
            beta2=0.999,
            weight_decay=0.0,
        ),
        eval=dataclasses.replace(theirs.eval, sample_tokens=0),
        checkpoint=CheckpointConfig(every=steps // args.epochs),
    )
    return with_epochs(from_dict(override_dict(to_dict(plain), args.set)), args.epochs, data)


def check_settings(settings: list[str]) -> None:
    """Raise ConfigError if --set names what a fine-tuning has no choice in."""
    for text in settings:
        if not text.startswith(_SETTABLE) or text.startswith("train.steps"):
            raise ConfigError(
                f"--set {text}: fine-tuning takes the fields of {', '.join(part.rstrip('.') for part in _SETTABLE)}, "
                "and its steps from --epochs",
                "--set strategy.name=zero3",
            )


def with_epochs(config: RunConfig, epochs: int, data: LabelledSet) -> RunConfig:
    """The configuration with the steps of that many epochs, scored after each."""
    per_epoch = -(-len(data.train) // config.train.global_batch_size)
    return dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, steps=epochs * per_epoch),
        eval=dataclasses.replace(config.eval, every=per_epoch),
    )


def spread_problems(config: RunConfig) -> list[str]:
    """What a run may ask of its world, and a fine-tuning may not."""
    strategy = config.strategy
    found = [
        f"strategy.{name}={getattr(strategy, name)}: fine-tuning spreads the texts over ranks (ddp, zero1, zero2, "
        "zero3), and does not split the model's matrices or layers"
        for name in ("tp", "pp", "cp", "ep")
        if getattr(strategy, name) > 1
    ]
    if strategy.entry.apart:
        found.append(f"strategy.name={strategy.name!r}: fine-tuning is here for ranks that meet in every step")
    if strategy.implementation == "deepspeed":
        found.append("strategy.implementation='deepspeed': fine-tuning is here for 'frog' and 'torch'")
    if config.train.precision == "fp16":
        found.append("train.precision='fp16': fine-tuning is here for 'fp32' and 'bf16'")
    return found


def finetune_config(
    args: argparse.Namespace, base: RunFolder, step: int, sha256: str, data: LabelledSet
) -> FinetuneConfig:
    """What run.json keeps of the fine-tuning. Raises UsageError if the data have no labels for the head."""
    if args.head == "classification" and not data.labels:
        raise UsageError(f"{data.path}: has completions, no labels to classify by", "--head completion")
    return FinetuneConfig(
        base=str(base.path),
        base_step=step,
        base_sha256=sha256,
        data=args.data,
        data_sha256=data.data_sha256,
        head=args.head,
        labels=data.labels,
        epochs=args.epochs,
        heldout=args.heldout,
        lora=parse_lora(args.lora),
    )


def read_task(base: RunFolder, tuning: FinetuneConfig, max_length: int) -> Task:
    """The task, with the base's tokenizer. Raises RunError if it has none."""
    if not base.tokenizer_json.exists():
        raise RunError(f"{base.path}: no tokenizer.json, so texts cannot be read", "import it with its tokenizer")
    return Task(tuning.head, tuning.labels, load_tokenizer(base.tokenizer_json), max_length)
