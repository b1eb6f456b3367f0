"""Slurm: a cluster on this machine, and what job files say."""
