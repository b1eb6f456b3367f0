"""The way to the grader, where it ends before it has begun."""

from __future__ import annotations

import signal

from frog.grader.client import Grader


def test_a_grader_that_was_asked_nothing_is_ended_before_it_has_loaded() -> None:
    with Grader() as grader:
        pass
    assert grader._process.returncode == -signal.SIGKILL
