"""Strategies: how the work of a step is spread over ranks."""

from frog.parallel.flat import FlatParameters

__all__ = ["FlatParameters"]
