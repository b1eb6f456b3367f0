"""Faults met by real worlds, one after the other, and what came of each."""
