"""Prove that strategies compute what one process computes."""
