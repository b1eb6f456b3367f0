"""The layer's messages, in one process: the batch that each reports, and how long the layer keeps it alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from frog.learn.grader.collectives import Layer


class Answering:
    """A judge that records messages, and lets this rank continue at once."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def answer(self) -> dict[str, Any]:
        return {}

    def batches(self) -> list[int | None]:
        return [message["operation"]["batch"] for message in self.sent if message["type"] == "enter"]


class Started:
    """A message that gloo has started: it must exist until it has arrived."""

    alive: ClassVar[weakref.WeakSet[Started]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.alive.add(self)

    def wait(self) -> bool:
        return True


def isend(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> Started:
    return Started()


def irecv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Started:
    return Started()


@pytest.fixture
def judge() -> Iterator[Answering]:
    """Install a layer as rank 0 of 2. No message leaves the process."""
    modules = (dist, distributed_c10d, _functional_collectives, torch.futures)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    kept = [(module, dict(vars(module))) for module in modules]
    distributed_c10d.isend, distributed_c10d.irecv = isend, irecv  # type: ignore[assignment]
    Started.alive.clear()
    answering = Answering()
    Layer(answering, [__file__], held=False).install()
    yield answering
    for module, before in kept:
        for name in [name for name, value in before.items() if vars(module).get(name) is not value]:
            setattr(module, name, before[name])
    dist.destroy_process_group()


def pair() -> list[dist.P2POp]:
    return [dist.P2POp(dist.isend, torch.ones(2), 1), dist.P2POp(dist.irecv, torch.zeros(2), 1)]


def test_messages_of_one_batch_report_its_number(judge: Answering) -> None:
    dist.isend(torch.ones(2), 1)
    dist.batch_isend_irecv(pair())
    dist.batch_isend_irecv(pair())
    dist.irecv(torch.zeros(2), 1)
    assert judge.batches() == [None, 0, 0, 1, 1, None]


def test_message_after_a_batch_that_failed_belongs_to_none(judge: Answering) -> None:
    with pytest.raises(ValueError, match="P2POp"):
        dist.batch_isend_irecv(["no operation"])
    dist.isend(torch.ones(2), 1)
    dist.batch_isend_irecv(pair())
    assert judge.batches() == [None, 1, 1]


def test_message_without_a_wait_lives_on(judge: Answering) -> None:
    dist.isend(torch.ones(2), 1)
    dist.irecv(torch.zeros(2), 1)
    assert len(Started.alive) == 2


def test_message_is_let_go_after_its_wait(judge: Answering) -> None:
    for work in (dist.isend(torch.ones(2), 1), dist.irecv(torch.zeros(2), 1)):
        work.wait()
    del work
    assert len(Started.alive) == 0
