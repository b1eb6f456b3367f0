"""What `frog plan` plans: a run file, a Hugging Face config.json, or a function that builds a torch module."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frog.core.config import RunConfig, load_run_config
from frog.core.errors import ConfigError, UsageError
from frog.core.schema import decode, read_bounded, shortened
from frog.core.units import format_count
from frog.plan.estimate.architectures import model_of, text_of
from frog.plan.model import PlannedModel, from_model_config

_HINT = "name a run file (.toml), a config.json of Hugging Face transformers, or module:function"
_BUILD_S = 300
_MOST_DIFFERENCE = 0.05
"""Largest relative difference between a module's number of parameters and that of the model that its sizes describe."""


@dataclass(frozen=True)
class NamedModel:
    """A model, what its file says of the run (columns of a table of runs), and notes for the reader."""

    model: PlannedModel
    most_positions: int = 0
    """Longest sequence; 0 if the file does not say."""
    cells: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    run: RunConfig | None = None
    config: Mapping[str, Any] | None = None
    """The content of the config.json."""


def read_named_model(name: str) -> NamedModel:
    """Read the model that a word of the command line names.

    Raises:  ConfigError or UsageError if it is missing, wrong, or of an architecture that the planner does not know.
    """
    if name.endswith(".toml"):
        return _from_run_file(Path(name))
    if ":" in name and not Path(name).exists():
        return _from_function(name)
    path = Path(name, "config.json") if Path(name).is_dir() else Path(name)
    try:
        data = read_bounded(path, ConfigError, _HINT)
    except FileNotFoundError:
        raise ConfigError(f"{shortened(str(path))}: no such file", _HINT) from None
    return _from_config(decode(data, dict[str, Any], str(path), _HINT, ConfigError), str(path))


def _from_config(table: dict[str, Any], origin: str) -> NamedModel:
    model = model_of(table, origin)
    notes = () if (text := text_of(table)) is table else ("the language model alone, without images",)
    positions = text.get("max_position_embeddings") or text.get("n_positions")
    most = positions if type(positions) is int and positions > 0 else 0
    return NamedModel(model, most, notes=notes, config=table)


def _from_run_file(path: Path) -> NamedModel:
    config = load_run_config(path)
    return NamedModel(
        from_model_config(config.model),
        config.model.max_position_embeddings,
        _cells(config),
        ("Frog's own program was measured on one H100 alone: the time is that of other programs with the same layout",)
        if config.strategy.implementation == "frog"
        else (),
        config,
    )


def _cells(config: RunConfig) -> dict[str, str]:
    """Return the columns of a table of runs that a run file states.

    Raises:  ConfigError for strategies that the planner does not model.
    """
    strategy, train = config.strategy, config.train
    if strategy.entry.trains_locally:
        raise ConfigError(f"strategy.name={strategy.name!r}: separate replicas are not modelled", "plan ddp or zero")
    programs = {"frog": "Frog", "torch": "FSDP2", "deepspeed": "DeepSpeed"}
    software = programs[strategy.implementation]
    overlapped = strategy.implementation == "frog" and strategy.reduction == "overlapped"
    cells = {
        "seq_len": config.data.sequence_length,
        "global_batch": train.global_batch_size,
        "grad_accum": train.grad_accum,
        "tp": strategy.tp,
        "pp": strategy.pp,
        "cp": strategy.cp,
        "ep": strategy.ep,
        "zero": strategy.entry.zero_stage,
        "zero_group": strategy.shard or "all",
        "schedule": strategy.schedule,
        "virtual_stages": strategy.virtual_stages if strategy.pp > 1 and strategy.schedule == "interleaved" else 1,
        "seq_parallel": "yes" if strategy.sequence_parallel and strategy.tp > 1 else "no",
        "recompute": "full" if train.activation_checkpointing else "none",
        "precision": train.precision,
        "software": f"{software} (overlapped)" if overlapped else software,
    }
    return {name: str(value) for name, value in cells.items()}


def _from_function(name: str) -> NamedModel:
    """Build a torch module in another process, and read its sizes from its `config`.

    Raises:  UsageError if it cannot be built or has no `config`; ConfigError if its sizes are not those of a
             transformer that the planner knows.
    """
    command = [sys.executable, "-P", "-m", "frog.plan.estimate.estimate_rank", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{name}: not built within {_BUILD_S} s", _HINT) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(f"{name}: {shortened(last, 500)}", _HINT)
    built = json.loads(done.stdout.splitlines()[-1])
    named = _from_config(built["config"], name)
    built_parameters, planned = built["num_parameters"], named.model.num_parameters()
    if abs(planned / max(1, built_parameters) - 1) > _MOST_DIFFERENCE:
        raise ConfigError(
            f"{name}: the module has {format_count(built_parameters)} parameters, a transformer of its sizes "
            f"{format_count(planned)}: it is another architecture",
            "name the config.json of a model that the planner knows",
        )
    note = f"{name}: {built_parameters:,} parameters, planned as a transformer of {planned:,}"
    return NamedModel(named.model, named.most_positions, notes=(note,))
