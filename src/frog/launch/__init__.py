"""Worlds: the processes of a run, started, watched and cleaned away."""
