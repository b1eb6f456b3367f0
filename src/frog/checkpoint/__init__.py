"""Ranked checkpoints: every rank writes its part, the manifest comes last, nothing is executed on load."""

from frog.checkpoint.load import Checkpoint, find_good, verify
from frog.checkpoint.save import Saver, after_no_room

__all__ = ["Checkpoint", "Saver", "after_no_room", "find_good", "verify"]
