"""Measurement and grading of collective libraries, from outside."""
