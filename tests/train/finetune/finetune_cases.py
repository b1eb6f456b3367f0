"""A tiny fine-tuning run, identical for a rank of a world and for one process."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from frog.core.config import DataConfig, ModelConfig, OptimizerConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.config.finetune import FinetuneConfig, LoraConfig
from frog.core.runs import EventWriter
from frog.core.runs.folder import RunFolder
from frog.train.comm import World
from frog.train.data.labelled import Example, LabelledSet
from frog.train.data.tokenizer import train_tokenizer
from frog.train.finetune.finetune_main import finetune
from frog.train.finetune.finetune_setup import Preparation
from frog.train.finetune.task import Task
from frog.train.log import RankLog
from frog.train.model import TinyTransformer
from frog.train.parallel.build_strategy import build_mesh
from frog.train.setup import Run
from frog.train.stop import StopRequest

EPOCHS = 3
SIZES = ModelConfig(300, 32, 64, 2, 4, 2, 32)
TEXTS = [f"{n} frogs sat on a log, {'and all of them sang of ponds' * (n % 3)}" for n in range(16)]
CASES: dict[str, dict[str, Any]] = {
    "classification": {"head": "classification"},
    "completion": {"head": "completion"},
    "accumulation": {"head": "completion", "grad_accum": 2},
    "filling alone": {"head": "classification", "grad_accum": 4},
    "untied": {"head": "completion", "tied": False},
    "two projections": {"head": "classification", "targets": ("q_proj", "layers.1.mlp.up_proj")},
}
STRATEGIES: dict[str, StrategyConfig] = {
    "ddp": StrategyConfig(),
    "ddp overlapped": StrategyConfig(reduction="overlapped", bucket_mb=0.001),
    "zero1": StrategyConfig(name="zero1"),
    "zero2": StrategyConfig(name="zero2"),
    "zero3": StrategyConfig(name="zero3"),
    "torch ddp": StrategyConfig(implementation="torch"),
    "torch zero3": StrategyConfig(name="zero3", implementation="torch"),
}
MUTANTS = ("equal shares", "own scores", "adapter of the start")
"""Ways to break fine-tuning that only a world of several ranks reveals."""


def run_case(world: World, folder: Path, case: str, strategy: StrategyConfig) -> dict[str, Any]:
    """Fine-tune one case; write the adapter and the events to `folder`.

    13 texts in batches of 8, of different lengths: ranks and micro-batches have different numbers of labels, and the
    last batch of an epoch is padded. All ranks except the first start from other base weights, which must not count.
    """
    options = CASES[case]
    examples = [Example(text, "odd" if n % 2 else "even", None, None, text) for n, text in enumerate(TEXTS)]
    tokenizer = train_tokenizer(TEXTS * 10, 300)
    torch.manual_seed(world.rank)
    sizes = replace(SIZES, tie_word_embeddings=options.get("tied", True))
    config = RunConfig(
        model=sizes,
        data=DataConfig(sequence_length=32),
        train=TrainConfig(steps=2 * EPOCHS, global_batch_size=8, grad_accum=options.get("grad_accum", 1)),
        strategy=strategy,
        # A large eps prevents Adam from amplifying rounding in gradients near zero.
        optimizer=OptimizerConfig(learning_rate=0.05, warmup_steps=1, eps=1e-3, grad_clip=0.5),
    )
    base = TinyTransformer(sizes)
    with torch.no_grad():
        for parameter in base.parameters():  # large weights, so that every gradient matters
            parameter.add_(torch.randn_like(parameter) * 0.2)
    lora = LoraConfig(4, 8, options.get("targets", ("all",)))
    tuning = FinetuneConfig("runs/base", 1, "", "", "", options["head"], ("even", "odd"), EPOCHS, 0.2, lora)
    run_folder = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    events = EventWriter(run_folder.rank_events(world.rank))
    world.report_to(events.collective)
    data = LabelledSet(Path("odd.jsonl"), "", examples[:13], examples[13:], ("even", "odd"))
    asked = Preparation(config, tuning, base, data, Task(tuning.head, tuning.labels, tokenizer, 32), Path("none"))
    with RankLog(None, world.rank, show=False) as log, contextlib.chdir(folder):
        run = Run(config, world, build_mesh(config, world), run_folder, events, log, StopRequest(), None, "0")
        return finetune(run, asked)
