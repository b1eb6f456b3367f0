"""Initial weights from trained models, and trained models loaded from their runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.config import ModelConfig, from_dict
from frog.core.errors import CheckpointError, RunError, UsageError
from frog.core.files import put_aside
from frog.core.machine import check_memory
from frog.core.runs.folder import RunFolder, find_run
from frog.train.checkpoint import Checkpoint, find_good
from frog.train.model import TinyTransformer
from frog.train.model.classifier import Classifier
from frog.train.model.hf import load_hf, save_hf, save_hf_classifier
from frog.train.state import weights_sha256

if TYPE_CHECKING:  # only fine-tuned runs load LoRA
    from frog.core.config.finetune import FinetuneConfig


def initial_weights(model: TinyTransformer, source: str | None) -> None:
    """Load weights from a run or a Hugging Face folder; None keeps the random weights.

    Raises:  RunError or CheckpointError if the source has no weights that fit.
    """
    if source is None:
        return
    if (Path(source) / "config.json").is_file():
        _, weights = load_hf(Path(source))
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in weights.items()}:
            raise RunError(
                f"model.init_from={source}: its sizes differ from this model", f"--set model.file={source}/config.json"
            )
        model.load_state_dict(weights)
        return
    checkpoint = trusted_checkpoint(find_run(source))
    checkpoint.load_into({f"model/{name}": parameter for name, parameter in model.named_parameters()})


def trusted_checkpoint(folder: RunFolder, step: int | None = None) -> Checkpoint:
    """Return the run's last good checkpoint, or that of one step. Raises CheckpointError if there is none."""
    checkpoint, passed_over = find_good(folder, step)
    if checkpoint is not None:
        return checkpoint
    if passed_over:
        listing = "\n".join(f"  - {problem}" for problem in passed_over)
        raise CheckpointError(f"{folder.checkpoints}: no checkpoint is intact\n{listing}", "train again")
    have = ", ".join(map(str, folder.checkpoint_steps())) or "none"
    wanted = "" if step is None else f" of step {step}"
    raise CheckpointError(f"{folder.checkpoints}: no checkpoint{wanted}; steps with one: {have}", "choose one of these")


def load_trained(folder: RunFolder, step: int | None = None) -> tuple[TinyTransformer, ModelConfig, int]:
    """Load the model of a run from a checkpoint (default: the last good one). Also return its config and the step."""
    if folder.read_run_json().finetune is not None:
        return load_merged(folder)
    config = from_dict(folder.read_run_json().config).model
    checkpoint = trusted_checkpoint(folder, step)
    check_memory(config.built_bytes(), f"{folder.run_json}: the model", "correct its sizes, or use a larger machine")
    model = TinyTransformer(config)
    checkpoint.load_into({f"model/{name}": parameter for name, parameter in model.named_parameters()})
    return model.eval(), config, checkpoint.step


@dataclass(frozen=True)
class Finetuned:
    """A fine-tuned run, ready for inference."""

    folder: RunFolder
    config: FinetuneConfig
    model: TinyTransformer
    """The base model with its adapters, not merged."""
    step: int
    """Number of fine-tuning steps."""


def read_finetune(folder: RunFolder) -> FinetuneConfig | None:
    """Return a run's fine-tuning configuration, or None if it is not a fine-tuned run."""
    table = folder.read_run_json().finetune
    if table is None:
        return None
    from frog.core.config.finetune import finetune_from_dict

    return finetune_from_dict(table)


def load_finetuned(folder: RunFolder) -> Finetuned:
    """Load the base's weights and the run's adapter.

    Raises:  RunError if the run is not fine-tuned, has no adapter, or its base is missing or has changed.
    """
    from frog.train.model.adapter import load_adapter

    config = read_finetune(folder)
    if config is None:
        raise RunError(f"{folder.path} is not a fine-tuned run: it has no adapter", "create one with `frog finetune`")
    adapter = complete_adapter(folder)
    base = load_base(folder, config)
    model = Classifier.from_base(base, len(config.labels)) if config.head == "classification" else base
    load_adapter(model, adapter)
    record = folder.read_achieved()
    return Finetuned(folder, config, model.eval(), record.step if record else 0)


def complete_adapter(folder: RunFolder) -> Path:
    """Return the run's adapter; if the run was killed while replacing it, the previous one.

    Raises:  RunError if it has none.
    """
    for path in (folder.adapter, put_aside(folder.adapter)):
        if path.is_dir():
            return path
    raise RunError(f"{folder.path} has no adapter: its fine-tuning did not finish", folder.resume_command)


def load_base(folder: RunFolder, config: FinetuneConfig) -> TinyTransformer:
    """Load the weights that a run is fine-tuned from. Raises RunError if they are missing or have changed."""
    base, _, _ = load_trained(_base_folder(folder, config), config.base_step)
    actual_sha256 = weights_sha256(base.named_parameters())
    if actual_sha256 != config.base_sha256:
        raise RunError(
            f"{config.base}, step {config.base_step}: its weights have the hash {actual_sha256[:12]}…, but the adapter "
            f"was trained on {config.base_sha256[:12]}…",
            "an adapter only fits the base weights that it was trained with: fine-tune again",
        )
    return base


def _base_folder(folder: RunFolder, config: FinetuneConfig) -> RunFolder:
    """Find the base run at its recorded path, or next to this run if both were moved."""
    for path in (Path(config.base), folder.path.parent / Path(config.base).name):
        if (path / "run.json").is_file():
            return RunFolder(path)
    raise RunError(f"{folder.path}: its base {config.base} is missing, and the adapter needs it", "restore it")


def load_merged(folder: RunFolder) -> tuple[TinyTransformer, ModelConfig, int]:
    """Like `load_trained`, for a fine-tuned generative run: merge its adapter into the base's weights.

    Raises:  UsageError if the run is a classifier, which cannot generate text.
    """
    from frog.train.model.lora import unload_lora

    tuned = load_finetuned(folder)
    if isinstance(tuned.model, Classifier):
        raise UsageError(f"{folder.path} classifies texts ({', '.join(tuned.config.labels)}) and cannot generate text",
                         f"frog classify {folder.path}")  # fmt: skip
    unload_lora(tuned.model)
    return tuned.model, tuned.model.config, tuned.step


def export_merged(folder: RunFolder, target: Path) -> str:
    """Merge a fine-tuned run and write it as a Hugging Face folder; return the transformers class that loads it."""
    from frog.train.model.lora import unload_lora

    tuned = load_finetuned(folder)
    unload_lora(tuned.model)
    if isinstance(tuned.model, Classifier):
        save_hf_classifier(tuned.model, target, folder.tokenizer_json, tuned.config.labels)
        return "AutoModelForSequenceClassification"
    save_hf(tuned.model, target, folder.tokenizer_json)
    return "AutoModelForCausalLM"
