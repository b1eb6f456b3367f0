"""Submission of runs to clusters: job files for Slurm and Kubernetes, and bundles for clusters without internet."""
