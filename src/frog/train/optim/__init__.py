"""Optimizers, built from tensors that name their parameters, and the learning-rate schedule."""
