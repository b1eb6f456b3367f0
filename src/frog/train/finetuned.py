"""Fine-tuned runs back from their folders: base and adapter put together, to classify, to write, to export."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from frog.config import ModelConfig, from_dict
from frog.config.finetune import FinetuneConfig, finetune_from_dict
from frog.core.errors import RunError, UsageError
from frog.core.runfolder import RunFolder, find_run
from frog.data import load_tokenizer
from frog.model import TinyTransformer
from frog.model.adapter import load_adapter
from frog.model.classifier import Classifier
from frog.model.classifier_hf import save_hf_classifier
from frog.model.hf import save_hf
from frog.model.lora import unload_lora
from frog.train.finetune_task import Task
from frog.train.start import load_trained
from frog.train.state import weights_sha256


@dataclass(frozen=True)
class Finetuned:
    """A fine-tuned run, ready to be asked."""

    folder: RunFolder
    config: FinetuneConfig
    model: TinyTransformer
    """The base with its adapters beside it, not merged."""
    task: Task
    step: int
    """Steps of the fine-tuning."""


def read_finetune(folder: RunFolder) -> FinetuneConfig | None:
    """What a run's fine-tuning was; None if the run is no fine-tuning."""
    table = folder.read_run().get("finetune")
    return None if table is None else finetune_from_dict(table)


def load_finetuned(folder: RunFolder) -> Finetuned:
    """The base's weights, with the run's adapter.

    Raises:  RunError if the run is no fine-tuning, has no adapter, or its base is gone or has other weights now.
    """
    config = read_finetune(folder)
    if config is None:
        raise RunError(f"{folder.path}: is not fine-tuned, it has no adapter", "`frog finetune` makes such a run")
    adapter = folder.path / "adapter"
    if not adapter.is_dir():
        raise RunError(f"{folder.path}: has no adapter: its fine-tuning did not end", "fine-tune again")
    base, _, _ = load_trained(_base_folder(folder, config), config.base_step)
    if (found := weights_sha256(base.named_parameters())) != config.base_sha256:
        raise RunError(
            f"{config.base}, step {config.base_step}: its weights hash to {found[:12]}…, the adapter was made for "
            f"{config.base_sha256[:12]}…",
            "an adapter fits only the weights that it was trained beside: fine-tune again",
        )
    model = Classifier.from_base(base, len(config.labels)) if config.head == "classification" else base
    load_adapter(model, adapter)
    run = from_dict(folder.read_run()["config"])
    task = Task(config.head, config.labels, load_tokenizer(folder.tokenizer_json), run.data.sequence_length)
    record = folder.read_record() or {}
    return Finetuned(folder, config, model.eval(), task, int(record.get("step") or 0))


def _base_folder(folder: RunFolder, config: FinetuneConfig) -> RunFolder:
    """The base, where it was or beside the run, should both have been moved."""
    for path in (Path(config.base), folder.path.parent / Path(config.base).name):
        if (path / "run.json").is_file():
            return RunFolder(path)
    raise RunError(f"{folder.path}: its base {config.base} is gone, and an adapter is nothing without", "bring it back")


def load_merged(folder: RunFolder) -> tuple[TinyTransformer, ModelConfig, int]:
    """As `load_trained`, of a fine-tuned run that writes: its adapter merged into the base's weights.

    Raises:  UsageError if the run classifies, and so has no head that writes.
    """
    tuned = load_finetuned(folder)
    if isinstance(tuned.model, Classifier):
        raise UsageError(f"{folder.path}: sorts texts into {', '.join(tuned.config.labels)}; it writes none",
                         f"frog classify {folder.path}")  # fmt: skip
    unload_lora(tuned.model)
    return tuned.model, tuned.model.config, tuned.step


def export_merged(folder: RunFolder, target: Path) -> str:
    """Write a fine-tuned run, merged, as a Hugging Face folder; return the class of transformers that loads it."""
    tuned = load_finetuned(folder)
    unload_lora(tuned.model)
    if isinstance(tuned.model, Classifier):
        save_hf_classifier(tuned.model, target, folder.tokenizer_json, tuned.config.labels)
        return "AutoModelForSequenceClassification"
    save_hf(tuned.model, target, folder.tokenizer_json)
    return "AutoModelForCausalLM"


def classify(args: argparse.Namespace) -> int:
    """`frog classify RUN --text ...`"""
    tuned = load_finetuned(find_run(args.run))
    if not tuned.config.labels:
        raise UsageError(f"{tuned.folder.path}: goes on with prompts, and has no classes", f"frog sample {args.run}")
    for text, chances_C in zip(*_classified(tuned, args.text), strict=True):
        chances = dict(zip(tuned.config.labels, chances_C.tolist(), strict=True))
        label = max(chances, key=chances.__getitem__)
        if args.json:
            print(json.dumps({"text": text, "label": label, "probabilities": chances}, ensure_ascii=False))
        else:
            width = max(map(len, tuned.config.labels))
            print(f"{label:{width}}  {chances[label]:.3f}  {text}")
    return 0


@torch.no_grad()
def _classified(tuned: Finetuned, given: Sequence[str] | None) -> tuple[list[str], Tensor]:
    texts = list(given) if given else list(_lines_of_input())
    if not texts or not all(text.strip() for text in texts):
        raise UsageError("there is no text to classify", '--text "...", or lines on standard input')
    return texts, tuned.task.class_scores(tuned.model, texts).softmax(-1)


def _lines_of_input() -> Iterator[str]:
    yield from (line.strip() for line in sys.stdin if line.strip())
