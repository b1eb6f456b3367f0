"""Starts the ranks of a cell world and ends them: `python -m frog.launch.cells.cell_launcher FOLDER SETTINGS`.

A process of its own, since the world's user may be killed at any moment: then this process ends the ranks and removes
the world's folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from frog.core.errors import FrogError
from frog.core.files import write_json
from frog.core.schema import Typed
from frog.core.units import count
from frog.hooks import rank_environment
from frog.launch.node_agents import Options
from frog.launch.nodes import Nodes
from frog.launch.world import run_world

ERROR = "error.json"
"""The file with the reason why a world ended, in its folder."""
_POLL_S, _GRACE_S = 0.2, 10.0
_FOREVER_S = 1e9


class WorldSettings(Typed, frozen=True, kw_only=True):
    """The options of a cell world: those of `frog run` with the same names."""

    nodes: int = 1
    nproc: int = 2
    """Ranks per node."""
    threads: int | None = None
    simulate_gpus: int | None = None
    network: str | None = None

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc

    def __str__(self) -> str:
        parts = [f"{self.world_size} ranks" if self.world_size > 1 else "1 rank"]
        if self.nodes > 1:
            parts.append(f"on {self.nodes} simulated nodes")
        if self.simulate_gpus:
            parts.append(f"with {count(self.simulate_gpus, 'simulated GPU')} per node")
        if self.network:
            parts.append(f"network {self.network}")
        return ", ".join(parts)


def launch(folder: Path, settings: WorldSettings) -> None:
    """Run the ranks until they end. Raises what `run_world` raises."""
    network = None
    if settings.network:
        from frog.launch.network import parse_network

        network = parse_network(settings.network)
    # The world's own watchdog sees a cell that hangs; a world that rests between two cells does not hang.
    env = {**rank_environment({}, folder, ("frog_observer",), None), "FROG_CELLS": str(folder), "PYTHONUNBUFFERED": "1"}
    if settings.simulate_gpus:
        env["FROG_START"] = "spawn"  # they replace parts of torch before a program loads it
    options = Options(
        settings.threads,
        deadline_s=_FOREVER_S,
        idle_s=_FOREVER_S,
        stuck_s=_FOREVER_S,
        network=network,
        extra_env=env,
        simulate_gpus=settings.simulate_gpus,
    )
    run_world(Nodes(settings.nodes, settings.nodes, settings.nproc), ["-m", "frog.launch.cells.cell_rank"], options)


def _end_with_parent(folder: Path) -> None:
    """End the world when the process that uses it has ended, and remove its folder."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_S)
        shutil.rmtree(folder.parent, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def main() -> NoReturn:
    """Launch the world that the arguments describe, and write the reason if it ends with an error."""
    folder = Path(sys.argv[1])
    parent = os.getppid()
    _end_with_parent(folder)
    code = 0
    try:
        launch(folder, msgspec.json.decode(sys.argv[2], type=WorldSettings))
    except FrogError as error:
        code = error.exit_code
        if folder.is_dir():
            write_json(folder / ERROR, {"what": error.what, "hint": error.hint})
    if os.getppid() != parent:
        shutil.rmtree(folder.parent, ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
