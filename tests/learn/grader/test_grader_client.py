"""The grader's client, closed before the grader has started."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from frog.learn.grader.client import Grader


def test_closing_a_grader_that_is_still_loading_kills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    kill, wait = subprocess.Popen.kill, subprocess.Popen.wait

    def noted_kill(process: Any) -> None:
        calls.append("kill")
        kill(process)

    def noted_wait(process: Any, timeout: float | None = None) -> int:
        calls.append("wait")
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "kill", noted_kill)
    monkeypatch.setattr(subprocess.Popen, "wait", noted_wait)
    with Grader():
        pass
    assert calls == ["kill", "wait"]
