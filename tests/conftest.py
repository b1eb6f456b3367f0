"""Fixtures for all tests."""

from __future__ import annotations

import json
import signal

import pytest
from harness import MODEL, RUN_FILE, Harness


def pytest_configure() -> None:
    """A shell that starts the tests in the background makes them, and all they start, deaf to Ctrl-C: hear again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    root = tmp_path_factory.mktemp("harness")
    made = Harness(root)
    (root / "config.json").write_text(json.dumps(MODEL))
    (root / "run.toml").write_text(RUN_FILE)
    lines = "".join(
        f"{n} frogs sat on a log; {n % 7} jumped, and {n % 5} sang of the {n % 11}th pond.\n\n" for n in range(4000)
    )
    (root / "rhymes.txt").write_text(lines)
    made.run("frog", "data", "prepare", "--corpus", "rhymes.txt", "--name", "rhymes", "--vocab-size", "300")
    return made
