"""This machine: what its operations cost, measured, and the step time of a run on it."""
