"""Fixtures for tests with slow networks."""

from __future__ import annotations

import pytest

from frog.core.errors import LaunchError
from frog.launch.network import Link, Network


@pytest.fixture(scope="session")
def may_make_networks() -> None:
    """Skip the test if the system does not permit namespaces, and give the reason."""
    try:
        with Network(2, Link()):
            pass
    except LaunchError as error:
        pytest.skip(error.what)
