"""Starts, watches and cleans up the processes of a world."""
