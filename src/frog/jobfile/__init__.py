"""What a job file for Slurm says: directives, shell, traps."""
