"""The files that a run names and that must accompany it to the cluster."""

from __future__ import annotations

from pathlib import Path

from frog.core.config import RunConfig
from frog.core.config.deepspeed import deepspeed_path
from frog.core.errors import ConfigError


def named_files(run_file: Path, config: RunConfig) -> dict[str, Path]:
    """Return the model file, DeepSpeed's and a strategy of one's own, by the setting that names each.

    Raises:  ConfigError if two of them, or one and the run file, have the same name: they will share a folder.
    """
    named = {"model.file": run_file.parent / config.source.file}
    if config.strategy.implementation == "deepspeed":
        named["strategy.deepspeed_file"] = deepspeed_path(config)
    if config.strategy.file is not None:
        named["strategy.file"] = Path(config.strategy.file)
    paths = [run_file, *named.values()]
    if len({path.name for path in paths}) < len(paths):
        raise ConfigError(
            f"two files have the same name: {', '.join(map(str, paths))}", "rename one: they will share a folder"
        )
    return named


def strategy_settings(named: dict[str, Path], folder: str) -> list[str]:
    """Return the settings with which a run finds the files of its strategy in a folder."""
    return [f"{name}={folder}/{path.name}" for name, path in named.items() if name.startswith("strategy.")]
