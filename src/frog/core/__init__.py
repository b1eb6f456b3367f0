"""Utilities that every package may use: errors, the environment, atomic files, seeds and units."""
