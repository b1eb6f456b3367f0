"""A grader with torch loaded, shared by the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from frog.learn.grader.client import Grader


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader
