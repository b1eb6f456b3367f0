"""Frog: distributed training, learned on a laptop and carried to a cluster with the same code."""

__version__ = "0.1.0"
