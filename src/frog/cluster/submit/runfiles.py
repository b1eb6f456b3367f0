"""The files that a run names and that must accompany it to the cluster."""

from __future__ import annotations

from pathlib import Path

from frog.config import RunConfig
from frog.config.deepspeed import deepspeed_path
from frog.core.errors import ConfigError


def named_files(run_file: Path, config: RunConfig) -> dict[str, Path]:
    """Return the model file and DeepSpeed's, by the setting that names each.

    Raises:  ConfigError if two of them, or one and the run file, have the same name: they will share a folder.
    """
    named = {"model.file": run_file.parent / config.source.file}
    if config.strategy.implementation == "deepspeed":
        named["strategy.deepspeed_file"] = deepspeed_path(config)
    paths = [run_file, *named.values()]
    if len({path.name for path in paths}) < len(paths):
        raise ConfigError(
            f"two files have the same name: {', '.join(map(str, paths))}", "rename one: they will share a folder"
        )
    return named
