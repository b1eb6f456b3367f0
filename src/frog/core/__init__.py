"""What every room may use: errors, the environment, atomic files, seeds, units, the paths of a run."""
