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


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        (1, 1, None),
        (1.0, 1, None),
        (1.000001, 1.0, None),
        (1.0001, 1.0, "x: found 1.0001, expected 1."),
        (5e-8, 0.0, None),  # the absolute tolerance
        (2e-7, 0.0, "x: found 2e-07, expected 0."),
        (NAN, NAN, None),
        (NAN, 1.0, "x: found nan, expected 1."),
        (1.0, NAN, "x: found 1, expected nan."),
        (INF, INF, None),
        (-INF, INF, "x: found -inf, expected inf."),
        (True, 1, "x: found True, expected 1."),
        (1, True, "x: found 1, expected True."),
        (True, True, None),
        ("1", 1, "x: found '1', expected 1."),
        (None, 1, "x: found nothing (None), expected 1."),
        (None, None, None),
        ("a", "a", None),
        ("a", "b", "x: found 'a', expected 'b'."),
        ("a" * 198, "b", f"x: found '{'a' * 198}', expected 'b'."),
        ("a" * 199, "b", f"x: found '{'a' * 196}..., expected 'b'."),
        ([1, 2], [1, 2], None),
        ((1, 2), [1, 2], None),
        ([1, 3], [1, 2], "x, number 2: found 3, expected 2."),
        ([1], [1, 2], "x: found [1], expected [1, 2]."),
        (3, [1, 2], "x: found 3, expected [1, 2]."),
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1, "b": [1, 5]}, {"a": 1, "b": [1, 2]}, "x, b, number 2: found 5, expected 2."),
        ({"a": 1}, {"b": 1, 3: 1}, "x: found a, expected b, 3."),
        ({}, {"b": 1}, "x: found nothing, expected b."),
        ([1], {"a": 1, "b": 2}, "x: found [1], expected a table of a, b."),
        (2, torch.ones(2), "x: found 2, expected a tensor of shape (2,)."),
        (torch.ones(2), "a", "x: found a tensor of shape (2,), expected 'a'."),
        (torch.ones(3), torch.ones(2), "x: found the shape (3,), expected (2,)."),
        (torch.ones(2, dtype=torch.int64), torch.ones(2), "x: found torch.int64, expected torch.float32."),
        (torch.ones(2, dtype=torch.float64), torch.ones(2), None),
        (torch.tensor(3.0), torch.tensor(1.0), "x: differs by up to 2: found 3, expected 1."),
        (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0]), None),
        (torch.tensor([NAN, 1.0]), torch.tensor([2.0, 1.0]), "x: differs by up to inf at [0]: found nan, expected 2."),
        (torch.tensor([[1.0, 2.0], [3.0, 9.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
         "x: differs by up to 5 at [1, 1]: found 9, expected 4."),
        (torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.5]),
         "x: differs by up to 0.5 at [0]: found 0.5, expected 1. It is 0.5 times the expected value everywhere."),
        (torch.tensor([0.0, 3.0]), torch.tensor([0.0, 1.0]), "x: differs by up to 2 at [1]: found 3, expected 1."),
    ],
)  # fmt: skip
def test_difference_of_any_two_values_names_the_first_place(found: Any, expected: Any, said: str | None) -> None:
    assert difference_of(found, expected, "x", 1e-5, 1e-7) == said


def test_tensor_of_one_element_is_a_number_and_a_longer_one_is_not() -> None:
    assert difference_of(torch.tensor(2.0), 2.0, "x", 1e-5, 1e-7) is None
    assert difference_of(torch.tensor([[2.0]]), 2.0, "x", 1e-5, 1e-7) is None
    assert difference_of(torch.tensor([3.0]), 2.0, "x", 1e-5, 1e-7) == "x: found 3, expected 2."
    assert str(difference_of(torch.tensor([2.0, 2.0]), 2.0, "x", 1e-5, 1e-7)).startswith("x: found ")
