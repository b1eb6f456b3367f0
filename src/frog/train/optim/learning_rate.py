"""The learning-rate schedule."""

from __future__ import annotations

import math

from frog.core.config import OptimizerConfig


def learning_rate(step: int, num_steps: int, config: OptimizerConfig) -> float:
    """Return the rate of a step, counted from 1. It rises linearly during warm-up, then follows a cosine."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    low, high = config.min_learning_rate, config.learning_rate
    return low + (high - low) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
