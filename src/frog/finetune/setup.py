"""What must stand before the first step of a fine-tuning: its configuration, its task, its run.json."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shutil
import sys
from typing import Any

from frog.config import DataConfig, ModelSource, OptimizerConfig, RunConfig, TrainConfig, from_dict, to_dict
from frog.config.finetune import FinetuneConfig, finetune_dict, parse_lora
from frog.config.load import override_dict
from frog.core.errors import ConfigError, RunError, UsageError
from frog.core.files import write_json
from frog.core.runfile import FORMAT
from frog.core.runfolder import RunFolder
from frog.data import load_tokenizer
from frog.data.labelled import LabelledSet
from frog.finetune.loop import FinetuneRun
from frog.finetune.task import Task
from frog.train.setup import describe_segment, now_text, versions

_SETTABLE = ("train.", "strategy.", "optimizer.")


def run_config(args: argparse.Namespace, base: RunFolder, data: LabelledSet) -> RunConfig:
    """The run's configuration: the base's model, this fine-tuning's numbers, and what --set changes.

    Raises:  ConfigError with every mistake.
    """
    if args.epochs < 1:
        raise ConfigError(f"--epochs {args.epochs}: must be at least 1")
    if args.batch_size < 1:
        raise ConfigError(f"--batch-size {args.batch_size}: must be at least 1")
    for text in args.set:
        if not text.startswith(_SETTABLE) or text.startswith("train.steps"):
            raise ConfigError(
                f"--set {text}: fine-tuning takes the fields of {', '.join(part.rstrip('.') for part in _SETTABLE)}, "
                "and its steps from --epochs",
                "--set strategy.name=zero3",
            )
    theirs = from_dict(base.read_run().config)
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
        eval=dataclasses.replace(theirs.eval, every=max(1, steps // args.epochs), sample_tokens=0),
    )
    config = from_dict(override_dict(to_dict(plain), args.set))
    steps = args.epochs * -(-len(data.train) // config.train.global_batch_size)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, steps=steps))


def spread_problems(config: RunConfig) -> list[str]:
    """What a run may ask of its world, and a fine-tuning may not."""
    strategy = config.strategy
    found = [
        f"strategy.{name}={getattr(strategy, name)}: fine-tuning spreads the texts over ranks (ddp, zero1, zero2, "
        "zero3), and does not split the model's matrices or layers"
        for name in ("tp", "pp", "cp", "ep")
        if getattr(strategy, name) > 1
    ]
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
        data_sha256=data.sha256,
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


def write_run_json(run: FinetuneRun, base: RunFolder) -> None:
    """Write run.json, and the base's tokenizer beside it."""
    task = run.task
    rows = [[len(task.row(example).tokens) for example in part] for part in (run.data.train, run.data.heldout)]
    content: dict[str, Any] = {
        "format": FORMAT,
        "name": run.folder.path.name,
        "created": now_text(),
        "argv": sys.argv,
        "config": to_dict(run.config),
        "finetune": finetune_dict(run.finetune),
        "num_parameters": sum(parameter.numel() for parameter in run.base.parameters()),
        "data": {
            "name": run.data.name,
            "data_sha256": run.data.sha256,
            "vocab_size": task.tokenizer.get_vocab_size(),
            "train_tokens": sum(rows[0]),
            "heldout_tokens": sum(rows[1]),
        },
        "versions": versions(),
        "segments": [describe_segment(run.world, run.mesh, from_step=0)],
    }
    shutil.copyfile(base.tokenizer_json, run.folder.tokenizer_json)
    write_json(run.folder.run_json, content)
    run.folder.link_logs()
