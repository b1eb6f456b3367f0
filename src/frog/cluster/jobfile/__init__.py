"""Job files for Slurm: their directives, their steps and their traps."""
