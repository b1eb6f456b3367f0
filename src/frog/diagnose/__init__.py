"""What went wrong in a run, from its folder alone."""
