"""Records of a check, as ranks write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LINE = ["/home/one/train.py", 7, "main"]


def step(number: int, **changes: Any) -> dict[str, Any]:
    weights = [[1000 + number, 1.0 + number]]
    return {
        "kind": "step",
        "optimizer": 0,
        "step": number,
        "number": number,
        "line": LINE,
        "lr": [0.1],
        "gradients": [[7 * number, 2.0]],
        "before": [999 + number],
        "weights": weights,
        "changed": [1.0],
        "state": [[]],
        "backwards": [{"line": LINE, "graph": [], "loss": 1.0, "bits": {"0": [7 * number]}}],
        **changes,
    }


def table(**changes: Any) -> dict[str, Any]:
    parameter = {"names": ["weight"], "module": 0, "shape": [4], "dtype": "float32", "trained": True, "ddp": [0, 1]}
    return {
        "kind": "parameters",
        "optimizer": 0,
        "class": "SGD",
        "made": LINE,
        "parameters": [{**parameter, **changes}],
    }


def write(run: Path, rank: int, lines: list[dict[str, Any]], end: str = "") -> None:
    folder = run / "observed" / "attempt_0" / f"rank_{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    start = {"kind": "start", "format": 1, "rank": rank, "world_size": 2, "every": 1}
    module = {"kind": "module", "module": 0, "class": "Linear", "wrapper": "ddp"}
    every = [start, module, *lines]
    (folder / "checks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in every) + end)


def two_ranks(run: Path, **other: Any) -> None:
    """Write two ranks, of which the second differs in its second step."""
    write(run, 0, [table(), step(1), step(2), {"kind": "end", "steps": 2}])
    write(run, 1, [table(), step(1), step(2, **other), {"kind": "end", "steps": 2}])
