"""When all sleep, and when they only seem to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from frog.grader import limits
from frog.grader.limits import Watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process has one state")


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch([], 1.0, tmp_path)


def looks(watch: Watch, monkeypatch: pytest.MonkeyPatch, states: Iterator[str]) -> list[bool]:
    """What each look said of a process with one thread in those states."""
    said = []
    for state in states:
        monkeypatch.setattr(limits, "of_threads", lambda pid, name, now=state: [f"7 (a ) S) {now} 1 1"])
        said.append(watch._runs(psutil.Process()))
    return said


def test_a_thread_that_looks_up_now_and_then_sleeps(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(looks(watch, monkeypatch, iter("SSR" * 100)))


def test_a_thread_that_waits_for_a_core_does_not(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    said = looks(watch, monkeypatch, iter("R" * 30 + "S" * 30))
    assert said[:15] == [False] * 9 + [True] * 6
    assert said[-25:] == [False] * 25
