"""Handing a run in: cluster profiles, job files, submission."""
