"""Slurm on this machine: the real one, and the part of it that our job files use where there is none."""
