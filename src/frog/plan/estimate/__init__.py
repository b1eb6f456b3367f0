"""Predicts step time and memory of a training run on a cluster, without torch. The formulas: docs/plan/plan.md."""
