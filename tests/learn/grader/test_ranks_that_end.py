"""The judge explains a rank's end only after reading all earlier messages. Only the judge's process runs here."""

from __future__ import annotations

import math
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from frog.launch.resource_limits import ResourceMonitor
from frog.learn.grader.message import Line
from frog.learn.grader.outcome import Failure
from frog.learn.grader.world import Task, _Rank, _Running

ABORTED = -6


class Process:
    """A process that runs, or has ended with an exit code."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class World:
    """Two ranks with their messages to the judge."""

    def __init__(self, running: _Running, sockets: ExitStack) -> None:
        self.running, self.processes = running, (Process(), Process())
        self.lines = []
        for process in self.processes:
            ours, theirs = map(sockets.enter_context, socket.socketpair())
            ours.setblocking(False)
            rank = _Rank(cast("subprocess.Popen[bytes]", process), line=ours, is_ready=True)
            running._ranks.append(rank)
            self.lines.append(Line(theirs))

    def come(self, rank: int, numel: int) -> None:
        operation = {"op": "all_reduce", "group": (0, 1), "sizes": [f"{numel} x float32"], "is_async": True}
        self.lines[rank].send({"type": "enter", "operation": operation})

    def fail(self, rank: int, name: str) -> None:
        about: dict[str, Any] = {"name": name, "text": "", "where": "", "trace": []}
        self.lines[rank].send({"type": "error", **about})

    def judged(self, *read: int) -> Failure:
        """Return the judge's failure if it has read only these ranks' messages when it looks for ended processes."""
        for rank in read:
            self.running._read(rank)
        assert self.running._failure is None
        self.running._judge_ends()
        assert self.running._failure is not None
        return self.running._failure


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    task = Task(2, {}, "work", None, ({}, {}), True, 1.0, tmp_path, {}, (), b"", tmp_path)
    running = _Running(task, None, tmp_path)
    running._monitor = ResourceMonitor([], 1.0, tmp_path)
    with ExitStack() as sockets:
        sockets.callback(running._selector.close)
        yield World(running, sockets)


@pytest.mark.parametrize("read", [(), (0,), (1,)])
def test_abort_by_gloo_is_explained_by_mismatched_sizes(world: World, read: tuple[int, ...]) -> None:
    world.come(0, 4)
    world.come(1, 4000)
    world.processes[0].code = ABORTED
    assert world.judged(*read).id == "different-collectives"


def test_connection_error_after_an_abort_is_explained_by_mismatched_sizes(world: World) -> None:
    world.come(0, 4)
    world.fail(0, "RuntimeError")
    world.come(1, 4000)
    assert world.judged(0).id == "different-collectives"


def test_crashed_rank_is_named_even_if_another_rank_raised(world: World) -> None:
    world.come(0, 4)
    world.come(1, 4)
    world.fail(0, "RuntimeError")
    world.processes[1].code = ABORTED
    assert world.judged(0).id == "crashed"


def test_first_of_two_ranks_that_raised_is_named(world: World) -> None:
    world.fail(0, "KeyError")
    world.fail(1, "ValueError")
    assert world.judged(1).observed.startswith("rank 1 raised ValueError")


def test_rank_that_had_returned_is_not_reported_as_crashed(world: World) -> None:
    world.lines[0].send({"type": "result", "value": 1})
    world.fail(1, "KeyError")
    world.processes[0].code = ABORTED
    assert world.judged().observed.startswith("rank 1 raised KeyError")


def test_judge_does_not_wait_for_a_rank_that_has_returned(tmp_path: Path) -> None:
    nobody = (1 << 22) + 1  # above the highest process number
    monitor = ResourceMonitor([nobody, nobody], 60, tmp_path, {0: 0.0, 1: 0.0}, last_activity_s=-math.inf)
    breach = monitor.check(set(), {0})
    assert breach is not None
    assert (breach.id, breach.rank) == ("never-ends", 1)
