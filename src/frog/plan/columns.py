"""Operations on numbers or on numpy columns of numbers, so that a formula serves one layout and many at once.

numpy is loaded for the first column: `frog strategies` and the report have none.
"""

from __future__ import annotations

import math
from typing import Any

Column = Any
"""A numpy array with one number for each layout, or the number of the only layout."""

_NUMBERS = (int, float)


def choose(condition: Column, yes: Column, no: Column) -> Column:
    """Return `yes` where the condition is true, and `no` elsewhere."""
    if isinstance(condition, _NUMBERS):
        return yes if condition else no
    import numpy as np

    return np.where(condition, yes, no)


def least(one: Column, other: Column) -> Column:
    """Return the smaller number."""
    if isinstance(one, _NUMBERS) and isinstance(other, _NUMBERS):
        return min(one, other)
    import numpy as np

    return np.minimum(one, other)


def most(one: Column, other: Column) -> Column:
    """Return the larger number."""
    if isinstance(one, _NUMBERS) and isinstance(other, _NUMBERS):
        return max(one, other)
    import numpy as np

    return np.maximum(one, other)


def log2(number: Column) -> Column:
    if isinstance(number, _NUMBERS):
        return math.log2(number)
    import numpy as np

    return np.log2(number)


def always(condition: Column) -> bool:
    """Return True if the condition is true for every layout."""
    return bool(condition) if isinstance(condition, _NUMBERS) else bool(condition.all())


def never(condition: Column) -> bool:
    """Return True if the condition is false for every layout."""
    return not (condition if isinstance(condition, _NUMBERS) else condition.any())
