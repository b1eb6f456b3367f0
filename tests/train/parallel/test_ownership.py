"""The tensors that ranks own under a strategy of one's own: what is right, and the message for each mistake."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from frog.train.parallel.data.ownership import WrongOwnership, find_sharing, read_owned

CPU = torch.device("cpu")
SHAPES = {"a": (2, 3), "b": (4,)}
ALL = [("a", 0, 6), ("b", 0, 4)]


def test_every_rank_owns_everything() -> None:
    assert find_sharing(SHAPES, [ALL, ALL]) is False
    assert find_sharing(SHAPES, [[("a", 4, 6), ("b", 0, 4), ("a", 0, 4)], ALL]) is False, "in any order and any pieces"


@pytest.mark.parametrize(
    "claims",
    [
        [[("a", 0, 6)], [("b", 0, 4)]],
        [[("a", 0, 5)], [("a", 5, 6), ("b", 0, 1)], [("b", 1, 4)]],
        [ALL, []],
        [[("a", 0, 6), ("b", 2, 4)], [("b", 0, 2), ("a", 6, 6)]],
    ],
    ids=["by parameters", "by elements", "one owner", "with an empty range"],
)
def test_ranks_share_the_elements(claims: list[list[tuple[str, int, int]]]) -> None:
    assert find_sharing(SHAPES, claims) is True


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ([[("a", 0, 6)], [("a", 0, 6)]], "no rank owns b, elements 0 to 3 of 4"),
        ([[("a", 0, 2), ("b", 0, 4)], [("a", 3, 6)]], "no rank owns a, elements 2 to 2 of 6"),
        (
            [ALL, ALL, [("a", 0, 6), ("b", 0, 3)]],
            "ranks 0 and 1 own b, elements 3 to 3, but rank 2 does not",
        ),
        ([[("a", 0, 4)], [("a", 2, 6), ("b", 0, 4)]], "every rank owns a, elements 2 to 3, but only rank 0 owns a, "),
        ([[("a", 0, 4)], [("a", 2, 6)], [("b", 0, 4)]], "ranks 0 and 1 own a, elements 2 to 3, but rank 2 does not"),
        ([[*ALL, ("b", 1, 2)], []], "rank 0 twice owns b, elements 1 to 1, but rank 1 does not"),
        ([[*ALL, ("b", 1, 2)]], "rank 0 twice owns b, elements 1 to 1"),
        ([[("a", 0, 6)], [("b", 0, 5)]], "rank 1 owns b, elements 0 to 4, but it has only 4: leave padding out"),
        ([ALL, "on rank 1, item 0 is a str"], "on rank 1, item 0 is a str"),
    ],
)
def test_wrong_ranges_are_named_with_their_elements_and_ranks(claims: list[Any], words: str) -> None:
    with pytest.raises(WrongOwnership) as caught:
        find_sharing(SHAPES, claims)
    assert str(caught.value).startswith(words)


def parameter(*shape: int, **options: Any) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape, **options))


def test_owned_tensors_are_read() -> None:
    (one,) = read_owned([("a", 2, parameter(2, 2))], SHAPES, CPU)
    assert one.range == ("a", 2, 6)
    assert read_owned([], SHAPES, CPU) == []


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "it returns None: must be a list of (name, start, tensor)"),
        ({"a": parameter(6)}, "it returns a dict"),
        ([parameter(6)], "item 0 is a Parameter: must be (name, start, tensor)"),
        ([("a", 0)], "item 0 is a tuple"),
        ([("a", 0, parameter(6)), ("c", 0, parameter(6))], "item 1: 'c' is not a trained parameter of the model"),
        ([(3, 0, parameter(6))], "item 0: 3 is not a trained parameter"),
        ([("a", -1, parameter(6))], "item 0, a: start is -1"),
        ([("a", 0.0, parameter(6))], "item 0, a: start is 0.0"),
        ([("a", True, parameter(6))], "item 0, a: start is True"),
        ([("a", 0, torch.zeros(6))], "item 0, a: a Tensor: the optimizer needs an nn.Parameter"),
        ([("a", 0, None)], "item 0, a: None"),
        ([("a", 0, parameter(6, dtype=torch.bfloat16))], "item 0, a: torch.bfloat16 on cpu: must be contiguous"),
        ([("a", 0, nn.Parameter(torch.zeros(3, 2).t()))], "item 0, a: torch.float32 on cpu, not contiguous"),
        ([("a", 0, parameter(6, device="meta"))], "item 0, a: torch.float32 on meta"),
    ],
)
def test_wrong_items_are_named(returned: Any, words: str) -> None:
    with pytest.raises(WrongOwnership) as caught:
        read_owned(returned, SHAPES, CPU)
    assert str(caught.value).startswith(words)
