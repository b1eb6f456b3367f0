"""Whether a program's numbers are right: rules that hold for every correct run, on what its ranks recorded."""
