"""Clusters: explained job files, Slurm and Kubernetes on this machine, and runs submitted to real clusters."""
