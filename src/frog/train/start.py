"""Where weights come from when a run does not start from random ones, and trained models back from their runs."""

from __future__ import annotations

from pathlib import Path

from frog.checkpoint import Checkpoint, find_good
from frog.config import ModelConfig, from_dict
from frog.core.errors import CheckpointError, RunError
from frog.core.runfolder import RunFolder, find_run
from frog.model import TinyTransformer
from frog.model.hf import load_hf


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
    if "finetune" in folder.read_run():
        from frog.train.finetuned import load_merged  # which reads its base by this very function

        return load_merged(folder)
    config = from_dict(folder.read_run()["config"]).model
    checkpoint = trusted_checkpoint(folder, step)
    model = TinyTransformer(config)
    checkpoint.load_into({f"model/{name}": parameter for name, parameter in model.named_parameters()})
    return model.eval(), config, checkpoint.step
