"""A forked rank has the same environment as a rank that torchrun starts as a new program, and ends the same way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import LIMIT_S, all_gone, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ranks are forked only on Linux")
CASES = [sys.executable, "-u", "-m", "fork_cases"]
ENV = {**os.environ, "OMP_NUM_THREADS": "2"}
"""With this value, numpy starts a thread when it is loaded."""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command = [*CASES, str(tmp_path_factory.mktemp("fork"))]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=ENV, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2], ids=["script", "module"])
def test_forked_rank_has_the_environment_of_a_new_program(findings: dict[str, Any], number: int) -> None:
    spawned, forked = (findings[how]["looks"][number]["look"] for how in ("spawned", "forked"))
    assert forked == spawned
    assert forked["parent"] == findings["agent"]
    assert (forked["argv"], forked["is_main"], forked["leads_session"]) == (["--a b", ""], True, True)
    assert forked["environ"]["TORCHELASTIC_RUN_ID"] == "x y='\udc80"


def test_forked_ranks_draw_different_random_numbers(findings: dict[str, Any]) -> None:
    one, other, _ = (look["drawn"] for look in findings["forked"]["looks"])
    assert (one[0] != other[0], one[1] != other[1]) == (True, True)


def test_forked_rank_ends_like_a_new_program(findings: dict[str, Any]) -> None:
    assert findings["forked"]["codes"] == findings["spawned"]["codes"]
    assert findings["forked"]["codes"] == {
        "falls off its end": 0,
        "exits": 7,
        "exits with words": 1,
        "raises": 1,
        "is interrupted": -2,
        "is killed": -9,
        "leaves": 5,
    }


def test_forked_rank_leads_its_session_when_its_pid_is_known(findings: dict[str, Any]) -> None:
    assert findings["leads_its_session"] is True


def test_fork_server_refuses_ranks_that_must_be_new_programs(findings: dict[str, Any]) -> None:
    assert set(findings["refusals"].values()) == {True}, findings["refusals"]


def test_unread_answer_is_not_given_to_the_next_request(findings: dict[str, Any]) -> None:
    assert findings["interrupted"] == [9]


def test_ranks_outlive_their_fork_server(findings: dict[str, Any]) -> None:
    assert findings["without_server"] == {"alive": True, "late": True, "code": -15, "timed_out": True}


def test_unresponsive_fork_server_is_ended_and_not_used_again(findings: dict[str, Any]) -> None:
    assert findings["silent"] == {"ranks": [None, None], "server": -9}


def test_rank_forked_without_a_listener_does_not_begin(findings: dict[str, Any]) -> None:
    assert findings["unnamed"] is False


def test_fork_server_and_ranks_end_with_the_agent(tmp_path: Path) -> None:
    command = [*CASES, str(tmp_path), "stay"]
    with subprocess.Popen(command, cwd=Path(__file__).parent, env=ENV, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        family = [psutil.Process(pid) for pid in json.loads(agent.stdout.readline())]
        agent.kill()
    assert len(family) == 2
    wait_until(lambda: all_gone(family), "the end of the server and of its rank")
