"""What tests with slow networks need of the machine."""

from __future__ import annotations

import pytest

from frog.core.errors import LaunchError
from frog.launch.network import Link, Network


@pytest.fixture(scope="session")
def may_make_networks() -> None:
    """Skip where the system does not allow namespaces, and say why."""
    try:
        with Network(2, Link()):
            pass
    except LaunchError as error:
        pytest.skip(error.what)
