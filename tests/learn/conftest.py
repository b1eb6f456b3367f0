"""A grader with torch loaded, shared by the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from frog.learn.grader.client import Grader


@pytest.fixture(scope="session")
def graders() -> Iterator[list[Grader]]:
    graders: list[Grader] = []
    yield graders
    for grader in graders:
        grader.close()


@pytest.fixture
def grader(graders: list[Grader]) -> Grader:
    """Return the grader of this process; a new one if a test has ended it, as one that ends all descendants does."""
    if not graders or graders[-1]._process.poll() is not None:
        graders.append(Grader())
    return graders[-1]
