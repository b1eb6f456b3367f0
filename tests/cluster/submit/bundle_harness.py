"""Shared helpers of the bundle tests."""

from __future__ import annotations

from pathlib import Path

from frog.cli import main

CLUSTERS = Path(__file__).parents[3] / "config" / "clusters"


def bundle(*words: str) -> int:
    """Call `frog bundle`; return the exit code."""
    return main(["bundle", "run.toml", "--to", "out/it", *words])
