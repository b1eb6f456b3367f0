"""Many runs of the tiny model in one world: starting a world takes longer than such a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from harness import Harness, set_words

WORKER = Path(__file__).parent / "many_runs_worker.py"


def train_many(
    harness: Harness,
    world_size: int,
    runs: Mapping[str, Sequence[str]],
    resumed: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Train each of `runs`, given by name and settings, one after another; then resume those in `resumed`."""
    command_lines = [["run.toml", *set_words(f"name={name}", *settings)] for name, settings in runs.items()]
    command_lines += [["--resume", f"runs/{name}", *set_words(*settings)] for name, settings in resumed.items()]
    path = harness.root / f"{next(iter(runs))}.json"
    path.write_text(json.dumps(command_lines))
    words = ("frog", "run", "--nproc", str(world_size), "--threads", "1", "--", str(WORKER), str(path))
    harness.run(*words, limit_s=180 * len(command_lines))
