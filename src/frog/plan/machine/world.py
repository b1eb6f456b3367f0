"""Starts the ranks that measure a machine, and fits its costs on what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frog.core.errors import RunError
from frog.core.machine import threads_per_rank
from frog.core.processes import kill_group
from frog.plan.machine.costs import Curve, Machine, Sample, Work, WorldCosts, fit_cost
from frog.plan.machine.request import Request

_LAST_LINES = 20
_LIMIT_S = 900
_PROGRAM = ("-P", "-m", "frog.plan.machine.machine_rank")


def worlds_of(most_ranks: int, threads: int | None) -> tuple[tuple[int, int], ...]:
    """Return the world sizes to measure (powers of two), each with the threads that `frog run` gives a rank."""
    sizes = [1 << power for power in range(most_ranks.bit_length()) if 1 << power <= most_ranks]
    return tuple((size, threads or threads_per_rank(size)) for size in sizes)


def measure_worlds(request: Request, program: Sequence[str] = _PROGRAM) -> list[dict[str, Any]]:
    """Run the ranks, and return their samples by world. Kills them if it is interrupted.

    Raises:  RunError with the end of their output if one fails.
    """
    num_ranks = max(size for size, _ in request.worlds)
    with tempfile.TemporaryDirectory(prefix="frog-calibrate-") as name:
        folder = Path(name)
        words = [str(num_ranks), json.dumps(asdict(request)), name]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(num_ranks):
                processes.append(_start([*program, str(rank), *words], folder / f"{rank}.log"))
            for rank, process in enumerate(processes):
                _wait(rank, process, folder)
        finally:
            for process in processes:
                kill_group(process.pid)
                process.wait()
        samples: list[dict[str, Any]] = json.loads((folder / "samples.json").read_text())
        return samples


def _start(words: list[str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as log:
        command = [sys.executable, *words]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def _wait(rank: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        code = process.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise RunError(f"rank {rank} did not end within {_LIMIT_S} s", "try --quick") from None
    if code:
        last = (folder / f"{rank}.log").read_text(errors="replace").splitlines()[-_LAST_LINES:]
        raise RunError("\n".join([f"rank {rank} ended with exit code {code}; its last output:", *last]))


def fit_machine(measured: Sequence[Mapping[str, Any]], cores: float) -> Machine:
    """Fit the costs of each world on its samples."""
    return Machine(cores, {world["world_size"]: _fit_world(world) for world in measured})


def _fit_world(world: Mapping[str, Any]) -> WorldCosts:
    samples: dict[str, dict[str, list[Sample]]] = {}
    for sample in world["samples"]:
        samples.setdefault(sample["kind"], {}).setdefault(sample["name"], []).append(
            (Work(**sample["work"]), sample["seconds"])
        )

    def curves(kind: str) -> dict[str, Curve]:
        measured = samples.get(kind, {}).items()
        return {name: Curve.of([(work.num_bytes, seconds) for work, seconds in points]) for name, points in measured}

    [(added, memory_s)], [(_, launch_s)] = samples["memory"]["add"], samples["launch"]["add"]
    [(multiplied, product_s)] = samples["reference"]["product"]
    return WorldCosts(
        threads=world["threads"],
        product_s=product_s / multiplied.products,
        launch_s=launch_s,
        memory_s=memory_s / added.num_bytes,
        optimizer=curves("optimizer")["adamw"],
        layer={name: fit_cost(named_samples) for name, named_samples in samples["layer"].items()},
        head={name: fit_cost(named_samples) for name, named_samples in samples["head"].items()},
        links=curves("link"),
    )


def product_rates(world: Mapping[str, Any], precision: str) -> dict[int, float]:
    """Return the operations per second of square products by their width."""
    rates = {}
    for sample in world["samples"]:
        kind, _, width = sample["name"].partition(" ")
        if sample["kind"] == "product" and kind == precision:
            rates[int(width)] = 2 * int(width) ** 3 / sample["seconds"]
    return rates
