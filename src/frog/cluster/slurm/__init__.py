"""Slurm on this machine: a real cluster, or an emulator of the commands that our job files use."""
