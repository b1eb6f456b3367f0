"""Numbers in verdicts: singular and plural, and enough digits to tell two numbers apart."""

from __future__ import annotations

import pytest
import torch

from frog.learn.grader.grade import difference_of
from frog.learn.grader.words import count, distinct_texts


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [(1, ("byte",), "1 byte"), (0, ("batch", "batches"), "0 batches"), (2048, ("byte",), "2,048 bytes")],
)
def test_noun_agrees_with_its_number(number: int, nouns: tuple[str, ...], text: str) -> None:
    assert count(number, *nouns) == text


@pytest.mark.parametrize(
    ("found", "expected", "texts"),
    [
        (0.5, 0.25, ("0.5", "0.25")),
        (0.12345678, 0.12345679, ("0.12345678", "0.12345679")),
        (1.0, 1.0 + 2**-52, ("1", "1.0000000000000002")),
        (3.0, 3.0, ("3", "3")),
    ],
)
def test_different_numbers_get_different_texts(found: float, expected: float, texts: tuple[str, str]) -> None:
    assert distinct_texts(found, expected) == texts


@pytest.mark.parametrize("wrap", [float, lambda x: torch.tensor([0.0, x], dtype=torch.float64)])
def test_comparison_prints_distinguishable_numbers(wrap: object) -> None:
    text = difference_of(wrap(1.2345678), wrap(1.2345679), "the loss", 1e-12, 0.0)  # type: ignore[operator]
    assert text is not None
    assert "1.2345678," in text
    assert "1.2345679" in text
