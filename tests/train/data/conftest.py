"""A small corpus and a set prepared from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frog.train.data import Document, PreparedData, prepare

WORDS = ["frog", "pond", "leap", "lily", "water", "reed", "night", "song", "moon", "rain", "stone", "fly", "green"]

Corpus = Callable[[], Iterator[Document]]


def _document(number: int) -> Document:
    generator = random.Random(number)
    words = generator.choices(WORDS, k=generator.randrange(40, 160))
    return Document(f"document {number}", f"{number}: {' '.join(words)}.\n")


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """Return 200 short documents, the same at every call."""
    return lambda: map(_document, range(200))


@pytest.fixture(scope="session")
def data(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Return the prepared corpus, in several shards."""
    root = tmp_path_factory.mktemp("data")
    return prepare("small", corpus, source="test", vocab_size=300, heldout_fraction=0.2, root=root, shard_tokens=3000)


@pytest.fixture
def copy(corpus: Corpus, tmp_path: Path) -> PreparedData:
    """Return a separate copy of the set, which a test may damage."""
    return prepare("copy", corpus, source="test", vocab_size=300, root=tmp_path)
