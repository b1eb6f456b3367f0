"""The messages that a process has begun with `isend` and `irecv`, from wrapped methods of torch's process groups."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from frog.observe.hook.frog_observer.unrecorded_calls import Messages


class Work:
    """A message; `isend` and `irecv` return it."""

    done = False

    def is_completed(self) -> bool:
        return self.done

    def wait(self, timeout: None = None) -> None:
        """Wait in C, in torch."""


class Group:
    """Ranks 4 and 6."""

    group_name = "7"

    def send(self, tensors: list[Any], rank: int, tag: int) -> Work:
        return Work()

    recv = send

    def recv_anysource(self, tensors: list[Any], tag: int) -> Work:
        return Work()


TENSOR = SimpleNamespace(shape=(3, 2), dtype="torch.float32")
GROUP = Group()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Torch before its first group. Each test wraps a group class of its own."""
    found = SimpleNamespace(pg_names={}, pg_group_ranks={GROUP: {4: 0, 6: 1}})
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=found))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(ProcessGroup=Group))
    for name in ("send", "recv", "recv_anysource"):
        monkeypatch.setattr(Group, name, vars(Group)[name])
    return found


def watched() -> Messages:
    messages = Messages()
    messages.watch()
    messages.watch()  # at each beat; wraps only once
    return messages


def test_messages_have_a_number_by_operation_peer_and_tag(world: SimpleNamespace) -> None:
    messages = watched()
    works = [GROUP.send([TENSOR], 1, 0), GROUP.send([TENSOR], 1, 3), GROUP.send([TENSOR], 1, 0)]
    works += [GROUP.recv([TENSOR], 0, 0), GROUP.recv_anysource([TENSOR], 2)]
    works[0].done = True
    seen = messages.seen()
    assert seen["whole"]
    assert sorted(map(str, seen["counts"])) == [
        "['irecv', 4, 0, '7', 1]",
        "['irecv', None, 2, '7', 1]",
        "['isend', 6, 0, '7', 2]",
        "['isend', 6, 3, '7', 1]",
    ]
    first, _, third, *_ = seen["last"]
    assert (first["done"], third["done"], third["number"], third["size"]) == (True, False, 2, [3, 2])
    assert third["line"]["file"] == __file__


def test_record_that_begins_late_or_sees_an_unknown_call_is_not_whole(world: SimpleNamespace) -> None:
    messages = watched()
    with pytest.raises(TypeError):
        GROUP.send()  # type: ignore[call-arg]
    assert messages.seen()["whole"]
    GROUP.send([None], 1, 0)
    assert not messages.seen()["whole"]
    world.pg_names = {GROUP: "7"}
    assert not watched().seen()["whole"]


def in_wait(work: Any) -> Iterator[None]:
    yield work.wait((yield))


def between(work: Any) -> Iterator[None]:
    work.wait()
    yield
    work.wait()


@pytest.mark.parametrize(("program", "awaited"), [(in_wait, True), (between, False)])
def test_message_is_awaited_only_in_a_line_that_calls_wait(world: SimpleNamespace, program: Any, awaited: bool) -> None:
    messages = watched()
    work = GROUP.send([TENSOR], 1, 0)
    running = program(work)
    next(running)
    stack = [running.gi_frame]
    assert messages.are_awaited(stack) is awaited
    work.done = True
    assert not messages.are_awaited(stack)
    assert not messages.are_awaited([])
