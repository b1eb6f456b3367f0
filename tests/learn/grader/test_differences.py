"""The text of a failed comparison of two values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from frog.learn.grader.grade import difference_of


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        ([0.0, 1.0], [1.0, 1.0], "x: differs by up to 1 at [0]: found 0, expected 1 everywhere."),
        (
            [2.0, 4.0, 0.0],
            [1.0, 2.0, 0.0],
            "x: differs by up to 2 at [1]: found 4, expected 2. It is 2 times the expected value everywhere.",
        ),
        ([2.0, 4.0, 1.0], [1.0, 2.0, 0.0], "x: differs by up to 2 at [1]: found 4, expected 2."),
        ([2.0], [1.0], "x: differs by up to 1 at [0]: found 2, expected 1."),
        ([1.0, 2.0], [1.0, 2.0], None),
    ],
)
def test_difference_of_two_tensors_is_described(found: Any, expected: Any, said: str | None) -> None:
    assert difference_of(torch.tensor(found), torch.tensor(expected), "x", 1e-5, 1e-7) == said


def test_tensor_of_one_element_is_a_number_and_a_longer_one_is_not() -> None:
    assert difference_of(torch.tensor(2.0), 2.0, "x", 1e-5, 1e-7) is None
    assert difference_of(torch.tensor([[2.0]]), 2.0, "x", 1e-5, 1e-7) is None
    assert difference_of(torch.tensor([3.0]), 2.0, "x", 1e-5, 1e-7) == "x: found 3, expected 2."
    assert str(difference_of(torch.tensor([2.0, 2.0]), 2.0, "x", 1e-5, 1e-7)).startswith("x: found ")
