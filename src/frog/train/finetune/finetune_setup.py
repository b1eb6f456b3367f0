"""Preparation of a fine-tuning run before its ranks connect: configuration, base, data, task."""

from __future__ import annotations

import argparse
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from frog.core.config import (
    CheckpointConfig,
    DataConfig,
    ModelSource,
    OptimizerConfig,
    RunConfig,
    TrainConfig,
    from_dict,
    to_dict,
)
from frog.core.config.finetune import FinetuneConfig, parse_lora
from frog.core.config.load import override_dict
from frog.core.errors import ConfigError, RunError, UsageError
from frog.core.runs.folder import RunFolder, find_run
from frog.train.data import load_tokenizer
from frog.train.data.labelled import LabelledSet, read_labelled
from frog.train.finetune.arguments import DEFAULTS, with_defaults
from frog.train.finetune.task import Task
from frog.train.model import TinyTransformer
from frog.train.model.lora import target_names
from frog.train.state import weights_sha256
from frog.train.trained import load_base, load_trained, read_finetune

_SETTABLE = ("train.", "strategy.", "optimizer.", "checkpoint.")
_MAY_CHANGE = ("epochs",)
"""Options that may change when a fine-tuning run resumes, besides --set."""


@dataclass(frozen=True)
class Preparation:
    """Inputs of a fine-tuning run, ready before its ranks connect."""

    config: RunConfig
    tuning: FinetuneConfig
    base: TinyTransformer
    data: LabelledSet
    task: Task
    tokenizer_json: Path
    resume: RunFolder | None = None
    """The run to resume."""


def prepare(args: argparse.Namespace) -> Preparation:
    """Prepare a new or a resumed fine-tuning run from the arguments."""
    if args.resume is not None:
        return _prepare_resumed(args)
    if args.run is None:
        raise UsageError("nothing to fine-tune", "name the base, a trained or imported run: frog finetune RUN")
    args, base = with_defaults(args), find_run(args.run)
    if read_finetune(base) is not None:
        raise UsageError(f"{base.path} is itself fine-tuned", "use its base, or export it with --merge and import it")
    data = read_labelled(args.data, args.heldout)
    config = run_config(args, base, data)
    model, _, step = load_trained(base, args.step)
    tuning = finetune_config(args, base, step, weights_sha256(model.named_parameters()), data)
    target_names(model, tuning.lora)  # reject invalid targets before the run folder exists
    task = read_task(base, tuning, config.data.sequence_length)
    return Preparation(config, tuning, model, data, task, base.tokenizer_json)


def _prepare_resumed(args: argparse.Namespace) -> Preparation:
    given = [name for name in ("run", "step", "max_length", "name", *DEFAULTS) if getattr(args, name) is not None]
    if extra := [name for name in given if name not in _MAY_CHANGE]:
        raise UsageError(
            f"--resume {args.resume} with {', '.join(extra)}: a resumed run keeps its own settings",
            "omit these options; only --epochs and --set can change a resumed run",
        )
    if args.go_on:
        raise UsageError(
            "--resume cannot be combined with --continue", "--resume RUN names the run; --continue takes --name"
        )
    folder = find_run(args.resume)
    tuning = read_finetune(folder)
    if tuning is None:
        raise UsageError(f"{folder.path} is not a fine-tuned run", f"resume it with: {folder.resume_command}")
    tuning = dataclasses.replace(tuning, epochs=args.epochs or tuning.epochs)
    data = read_labelled(tuning.data, tuning.heldout)
    check_settings(args.set)
    config = with_epochs(from_dict(override_dict(folder.read_run_json().config, args.set)), tuning.epochs, data)
    task = read_task(folder, tuning, config.data.sequence_length)
    return Preparation(config, tuning, load_base(folder, tuning), data, task, folder.tokenizer_json, folder)


def run_config(args: argparse.Namespace, base: RunFolder, data: LabelledSet) -> RunConfig:
    """Return the run's configuration: the base's model, the fine-tuning options, and the --set overrides.

    Raises:  ConfigError that lists every mistake.
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
    """Raise ConfigError if --set names a field that fine-tuning does not let the user change."""
    for text in settings:
        if not text.startswith(_SETTABLE) or text.startswith("train.steps"):
            raise ConfigError(
                f"--set {text}: fine-tuning accepts the fields of {', '.join(part.rstrip('.') for part in _SETTABLE)}; "
                "--epochs sets the steps",
                "--set strategy.name=zero3",
            )


def with_epochs(config: RunConfig, epochs: int, data: LabelledSet) -> RunConfig:
    """Return the configuration with the steps for `epochs` epochs and an evaluation after each."""
    per_epoch = -(-len(data.train) // config.train.global_batch_size)
    return dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, steps=epochs * per_epoch),
        eval=dataclasses.replace(config.eval, every=per_epoch),
    )


def spread_problems(config: RunConfig) -> list[str]:
    """Return the settings that pretraining supports and fine-tuning does not."""
    strategy = config.strategy
    problems = [
        f"strategy.{name}={getattr(strategy, name)}: fine-tuning supports data parallelism (ddp, zero1, zero2, zero3), "
        "and does not split the model's matrices or layers"
        for name in ("tp", "pp", "cp", "ep")
        if getattr(strategy, name) > 1
    ]
    if strategy.entry.trains_locally:
        problems.append(
            f"strategy.name={strategy.name!r}: fine-tuning needs a strategy that communicates in every step"
        )
    if strategy.implementation == "deepspeed":
        problems.append("strategy.implementation='deepspeed': fine-tuning supports 'frog' and 'torch'")
    if config.train.precision == "fp16":
        problems.append("train.precision='fp16': fine-tuning supports 'fp32' and 'bf16'")
    return problems


def finetune_config(
    args: argparse.Namespace, base: RunFolder, step: int, sha256: str, data: LabelledSet
) -> FinetuneConfig:
    """Return the fine-tuning entry of run.json. Raises UsageError if the head needs labels the data lacks."""
    if args.head == "classification" and not data.labels:
        raise UsageError(f"{data.path} has completions, but no labels for classification", "--head completion")
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
    """Return the task with the base's tokenizer. Raises RunError if the base has none."""
    if not base.tokenizer_json.exists():
        raise RunError(f"{base.path}: no tokenizer.json to encode texts", "import the model with its tokenizer")
    return Task(tuning.head, tuning.labels, load_tokenizer(base.tokenizer_json), max_length)
