"""The agent's side of a fork server, which a socket stands for, and when forking is safe."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from frog.launch.torchrun import forkserver
from frog.launch.torchrun.forkserver import ForkedRank, ForkServer, start_fork_server

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ranks are forked only on Linux")
COMMAND = [sys.executable, "-u", "my.py"]
ENV = {"HOME": "/me", "RANK": "0"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ForkServer, socket.socket]]:
    """Return a server of ranks that was loaded with `ENV`, and its own end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(forkserver, "child_env", lambda: dict(ENV))
    theirs.setblocking(False)
    with ours, theirs:
        yield ForkServer(ours, 77), theirs


def requests(theirs: socket.socket) -> list[dict[str, Any]]:
    found = []
    try:
        while message := theirs.recv(1 << 20):
            found.append(json.loads(message))
    except BlockingIOError:
        pass
    return found


def test_request_has_the_command_and_its_answer_the_pid(server: tuple[ForkServer, socket.socket]) -> None:
    ours, theirs = server
    for number, pid in ((1, 42), (2, 43)):
        theirs.send(json.dumps([number, pid]).encode())
        env = {**ENV, "RANK": str(number)}
        rank = ours.fork(COMMAND, env)
        assert rank is not None
        assert (rank.pid, rank.returncode) == (pid, None)
        assert requests(theirs) == [{"number": number, "command": COMMAND, "env": env}]


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ([sys.executable, "my.py"], ENV),  # not with -u
        (["/other/python", "-u", "my.py"], ENV),
        ([sys.executable], ENV),
        (COMMAND, {**ENV, "OMP_NUM_THREADS": "3"}),
        (COMMAND, {"RANK": "0"}),
        (COMMAND, {**ENV, "HOME": "/you"}),
        (COMMAND, {**ENV, "MY_RANK": "1"}),
    ],
)
def test_rank_with_another_python_or_environment_is_not_requested(
    command: list[str], env: dict[str, str], server: tuple[ForkServer, socket.socket]
) -> None:
    assert server[0].fork(command, env) is None
    assert requests(server[1]) == []


@pytest.mark.parametrize(
    "name",
    ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR",
     "MASTER_PORT", "TORCHELASTIC_RUN_ID", "FROG_ATTEMPT"],
)  # fmt: skip
def test_variables_of_a_rank_do_not_prevent_a_fork(name: str, server: tuple[ForkServer, socket.socket]) -> None:
    server[1].send(b"[1, 42]")
    assert server[0].fork(COMMAND, {**ENV, name: "9"}) is not None


def test_answers_to_earlier_requests_are_skipped_and_a_refusal_is_none(
    server: tuple[ForkServer, socket.socket],
) -> None:
    ours, theirs = server
    for answer in (b"[0, 41]", b"[1, 42]", b"[2, null]"):
        theirs.send(answer)
    rank = ours.fork(COMMAND, ENV)
    assert rank is not None
    assert rank.pid == 42
    assert ours.fork(COMMAND, ENV) is None
    theirs.shutdown(socket.SHUT_RDWR)
    assert ours.fork(COMMAND, ENV) is None


def test_server_that_does_not_answer_in_a_minute_is_killed(
    server: tuple[ForkServer, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    assert server[0]._requests.gettimeout() == 60.0
    server[0]._requests.settimeout(0.01)
    assert server[0].fork(COMMAND, ENV) is None
    assert killed == [(77, signal.SIGKILL)]
    assert server[0].fork(COMMAND, ENV) is None  # it is not asked again
    assert len(killed) == 1


# ---- a forked rank ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7 << 8, 7), (signal.SIGKILL, -9)])
def test_end_of_a_forked_rank_is_reaped_once(status: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(0, 0), (0, 0), (42, status)]

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        assert (pid, options) == (42, os.WNOHANG)
        return answers.pop(0)

    monkeypatch.setattr(os, "waitpid", waitpid)
    rank = ForkedRank(42)
    assert rank.poll() is None
    assert (rank.wait(), rank.poll(), rank.returncode, answers) == (code, code, code, [])


def test_forked_rank_is_awaited_for_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(os, "waitpid", lambda pid, options: (0, 0))
    monkeypatch.setattr(forkserver.time, "monotonic", lambda: now)
    monkeypatch.setattr(forkserver.time, "sleep", sleep)
    with pytest.raises(subprocess.TimeoutExpired, match="rank of process 42"):
        ForkedRank(42).wait(3.0)
    assert now == 104.0


# ---- when forking is safe --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "has_one_thread", "takes_orphans"),
    [("darwin", True, True), ("linux", False, True), ("linux", True, False)],
)
def test_no_server_is_forked_where_that_is_not_safe(
    platform: str, has_one_thread: bool, takes_orphans: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(forkserver, "_has_one_thread", lambda: has_one_thread)
    monkeypatch.setattr(forkserver, "take_orphans", lambda: takes_orphans)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it was forked"))
    assert start_fork_server(None) is None


def test_server_keeps_only_its_end_of_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[Any, ...]] = []

    def serve(requests: socket.socket, module: str | None, agent: int) -> None:
        served.append((module, agent))
        requests.close()
        raise InterruptedError  # it does not return

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(forkserver, "_has_one_thread", lambda: True)
    monkeypatch.setattr(forkserver, "take_orphans", lambda: True)
    monkeypatch.setattr(forkserver, "_serve", serve)
    monkeypatch.setattr(os, "fork", lambda: 0)
    with pytest.raises(InterruptedError):
        start_fork_server("my")
    assert served == [("my", os.getpid())]
    monkeypatch.setattr(os, "fork", lambda: 55)
    server = start_fork_server("my")
    assert server is not None
    assert (server.pid, len(served)) == (55, 1)
    with server._requests as requests:
        assert requests.recv(10) == b""  # no other process holds the other end


@pytest.mark.parametrize(
    ("threads", "forks", "is_one"), [([1, 1], 0, True), ([3, 1], 1, True), ([2, 2], 1, False), ([0, 0], 0, False)]
)
def test_threads_of_libraries_are_stopped_before_they_are_counted(
    threads: list[int], forks: int, is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[tuple[int, int]] = []
    monkeypatch.setattr(forkserver, "_num_threads", lambda: threads.pop(0))
    monkeypatch.setattr(os, "fork", lambda: 66)
    monkeypatch.setattr(os, "waitpid", lambda pid, options: waited.append((pid, options)))
    assert forkserver._has_one_thread() == is_one
    assert waited == [(66, 0)] * forks


def test_process_that_only_stops_threads_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(forkserver, "_num_threads", lambda: 2)
    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(os, "waitpid", lambda pid, options: pytest.fail("it waited"))
    with pytest.raises(SystemExit, match="0"):
        forkserver._has_one_thread()


def test_fork_without_memory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    assert forkserver._fork() is None
    assert forkserver._fork_orphan() is None
