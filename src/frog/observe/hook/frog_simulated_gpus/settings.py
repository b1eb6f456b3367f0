"""The environment of a rank with simulated GPUs."""

from __future__ import annotations

import os

VARIABLE = "FROG_SIMULATE_GPUS"
"""Environment variable with the number of simulated GPUs of a node, or `slurm`: those that Slurm gives to the job."""


def num_gpus() -> int | None:
    """Return the number of GPUs that this process sees, or None if they are not simulated.

    CUDA_VISIBLE_DEVICES selects among the simulated GPUs of the node, as it does among real ones.
    """
    text = os.environ.get(VARIABLE, "")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text == "slurm":
        return (_num_visible(visible) or None) if visible is not None else None
    if not text.isdigit() or int(text) == 0:
        return None
    return int(text) if visible is None else _num_visible(visible, int(text))


def _num_visible(visible: str, count: int | None = None) -> int:
    """Count the entries before the first invalid one, as CUDA does."""
    seen: list[int] = []
    for entry in visible.split(","):
        word = entry.strip()
        if not word.isdigit() or int(word) in seen or (count is not None and int(word) >= count):
            break
        seen.append(int(word))
    return len(seen)


def rank() -> int:
    """Return this process's rank, 0 without a launcher."""
    names = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 0)


def prefer_cpu_libraries() -> None:
    """Let DeepSpeed use its own operators for the CPU, unless the user has chosen others."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
