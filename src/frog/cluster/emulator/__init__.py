"""A small emulator of Slurm for machines without Slurm: the commands and options that our job files use.

A daemon manages the queue and runs the jobs on simulated nodes; sbatch, srun, squeue, scancel, sinfo and scontrol are
its clients. They behave like Slurm 22.05, which a test compares them with. An unsupported option is an error that names
it.
"""

RELEASE = "22.05.8"
"""Version of the Slurm that the emulator was compared with."""
