"""Searches for the best layout of a model on a cluster: all valid layouts by numpy, the best ones again exactly."""
