"""Collectives, measured and graded from outside."""
