"""A small emulator of Slurm, for machines that have none: the commands and options that our job files use.

A daemon keeps the queue and runs the jobs on pretended nodes; sbatch, srun, squeue, scancel, sinfo and scontrol are
clients of it. What they do was read off Slurm 22.05, and a comparison with it holds that. What is not known here is an
error that names the option.
"""

RELEASE = "22.05.8"
"""Of the Slurm whose behaviour this one was compared with."""
