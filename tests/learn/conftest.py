"""One grader for the tests of this folder: it has torch loaded and waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from frog.learn.grader.client import Grader


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader
