"""A module that Python imports as it starts, to see which functions a test calls."""
