"""Frog: distributed training, learned on a laptop and carried to a cluster with the same code."""

from frog.core.env import wait_passively

__version__ = "0.1.0"

wait_passively()  # every program of Frog's imports this first, and torch reads the setting when it loads
