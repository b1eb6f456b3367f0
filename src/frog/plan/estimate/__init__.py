"""Predicts step time and memory of a training run on a cluster. Numbers only, no torch. The formulas: docs/plan.md."""
