"""Operations on numbers or on numpy columns of numbers, so that a formula serves one layout and many at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Column = Any
"""A numpy array with one number for each layout, or the number of the only layout."""


def choose(condition: Column, yes: Column, no: Column) -> Column:
    """Return `yes` where the condition is true, and `no` elsewhere."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def least(one: Column, other: Column) -> Column:
    """Return the smaller number."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.minimum(one, other)
    return min(one, other)


def most(one: Column, other: Column) -> Column:
    """Return the larger number."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.maximum(one, other)
    return max(one, other)


def log2(number: Column) -> Column:
    return np.log2(number) if isinstance(number, np.ndarray) else math.log2(number)


def always(condition: Column) -> bool:
    """Return True if the condition is true for every layout."""
    return bool(condition.all()) if isinstance(condition, np.ndarray) else bool(condition)
