"""Ranked checkpoints: every rank writes its part, the manifest comes last, nothing is executed on load."""

from frog.checkpoint.load import Checkpoint, find_good, verify
from frog.checkpoint.save import Saver

__all__ = ["Checkpoint", "Saver", "find_good", "verify"]
