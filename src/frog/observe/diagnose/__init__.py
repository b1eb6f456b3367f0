"""Find what went wrong in a run, from its folder alone."""
