"""Optimizers, built from tensors that name their parameters, and the schedule of the learning rate."""
