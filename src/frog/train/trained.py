"""Where weights come from when a run does not start from random ones, and trained models back from their runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frog.checkpoint import Checkpoint, find_good
from frog.config import ModelConfig, from_dict
from frog.config.finetune import FinetuneConfig, finetune_from_dict
from frog.core.errors import CheckpointError, RunError, UsageError
from frog.core.files import put_aside
from frog.core.memory import check_memory
from frog.model import TinyTransformer
from frog.model.adapter import load_adapter
from frog.model.classifier import Classifier
from frog.model.classifier_hf import save_hf_classifier
from frog.model.hf import load_hf, save_hf
from frog.model.lora import unload_lora
from frog.runs.folder import RunFolder, find_run
from frog.train.state import weights_sha256


def initial_weights(model: TinyTransformer, source: str | None) -> None:
    """Fill the model from a run or from a Hugging Face folder; with None leave its random weights.

    Raises:  RunError or CheckpointError if there is nothing that fits.
    """
    if source is None:
        return
    if (Path(source) / "config.json").is_file():
        _, weights = load_hf(Path(source))
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in weights.items()}:
            raise RunError(
                f"model.init_from={source}: its sizes are not this model's", f"--set model.file={source}/config.json"
            )
        model.load_state_dict(weights)
        return
    checkpoint = trusted_checkpoint(find_run(source))
    checkpoint.load_into({f"model/{name}": parameter for name, parameter in model.named_parameters()})


def trusted_checkpoint(folder: RunFolder, step: int | None = None) -> Checkpoint:
    """The run's last good checkpoint, or that of one step; CheckpointError with what is wrong if there is none."""
    checkpoint, passed_over = find_good(folder, step)
    if checkpoint is not None:
        return checkpoint
    if passed_over:
        listing = "\n".join(f"  - {problem}" for problem in passed_over)
        raise CheckpointError(f"{folder.checkpoints}: no checkpoint can be trusted\n{listing}", "train again")
    have = ", ".join(map(str, folder.checkpoint_steps())) or "none"
    wanted = "" if step is None else f" of step {step}"
    raise CheckpointError(f"{folder.checkpoints}: no checkpoint{wanted}; steps there: {have}", "name one of those")


def load_trained(folder: RunFolder, step: int | None = None) -> tuple[TinyTransformer, ModelConfig, int]:
    """The model of a run with the weights of a checkpoint (the last good one), and that checkpoint's step."""
    if folder.read_run_json().finetune is not None:
        return load_merged(folder)
    config = from_dict(folder.read_run_json().config).model
    checkpoint = trusted_checkpoint(folder, step)
    check_memory(config.built_bytes(), f"{folder.run_json}: the model", "correct its sizes, or ask a larger machine")
    model = TinyTransformer(config)
    checkpoint.load_into({f"model/{name}": parameter for name, parameter in model.named_parameters()})
    return model.eval(), config, checkpoint.step


@dataclass(frozen=True)
class Finetuned:
    """A fine-tuned run, ready to be asked."""

    folder: RunFolder
    config: FinetuneConfig
    model: TinyTransformer
    """The base with its adapters beside it, not merged."""
    step: int
    """Steps of the fine-tuning."""


def read_finetune(folder: RunFolder) -> FinetuneConfig | None:
    """What a run's fine-tuning was; None if the run is no fine-tuning."""
    table = folder.read_run_json().finetune
    return None if table is None else finetune_from_dict(table)


def load_finetuned(folder: RunFolder) -> Finetuned:
    """The base's weights, with the run's adapter.

    Raises:  RunError if the run is no fine-tuning, has no adapter, or its base is gone or has other weights now.
    """
    config = read_finetune(folder)
    if config is None:
        raise RunError(f"{folder.path}: is not fine-tuned, it has no adapter", "`frog finetune` makes such a run")
    adapter = whole_adapter(folder)
    base = load_base(folder, config)
    model = Classifier.from_base(base, len(config.labels)) if config.head == "classification" else base
    load_adapter(model, adapter)
    record = folder.read_achieved()
    return Finetuned(folder, config, model.eval(), record.step if record else 0)


def whole_adapter(folder: RunFolder) -> Path:
    """A fine-tuning's adapter: where a start was killed as it put a new one in place, the one before.

    Raises:  RunError if it has none.
    """
    for path in (folder.adapter, put_aside(folder.adapter)):
        if path.is_dir():
            return path
    raise RunError(f"{folder.path}: has no adapter: its fine-tuning did not end", folder.resume_command)


def load_base(folder: RunFolder, config: FinetuneConfig) -> TinyTransformer:
    """The weights that a run is fine-tuned from. Raises RunError if they are gone, or are others now."""
    base, _, _ = load_trained(_base_folder(folder, config), config.base_step)
    if (found := weights_sha256(base.named_parameters())) != config.base_sha256:
        raise RunError(
            f"{config.base}, step {config.base_step}: its weights hash to {found[:12]}…, the adapter was made for "
            f"{config.base_sha256[:12]}…",
            "an adapter fits only the weights that it was trained beside: fine-tune again",
        )
    return base


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
