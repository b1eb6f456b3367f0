"""Ranked checkpoints: every rank writes its part, rank 0 writes the manifest last, loading executes no code."""

from frog.train.checkpoint.load import Checkpoint, find_good, verify
from frog.train.checkpoint.save import Saver, disk_full_hint

__all__ = ["Checkpoint", "Saver", "disk_full_hint", "find_good", "verify"]
