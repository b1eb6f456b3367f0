"""What a job file for Slurm says: directives, steps, traps."""
