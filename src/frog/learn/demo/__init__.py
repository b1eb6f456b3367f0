"""Demonstrations: a session's demo list, played step by step on real runs."""
