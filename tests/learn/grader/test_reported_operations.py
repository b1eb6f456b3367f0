"""What the layer over torch.distributed reports of each operation, and when an asynchronous result arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_unfinished_messages import Answering, judge

from frog.learn.grader import collectives
from frog.learn.grader.collectives import LateWork, Layer

__all__ = ["judge"]


def entered(judge: Answering) -> list[dict[str, Any]]:
    return [message["operation"] for message in judge.sent if message["type"] == "enter"]


def ones(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*sizes, dtype=dtype)


def pair(*sizes: int) -> list[torch.Tensor]:
    return [ones(*sizes), ones(*sizes)]


IS_OLD = not hasattr(dist, "all_gather_single")  # torch before 2.13
GATHER = "all_gather_into_tensor" if IS_OLD else "all_gather_single"
SCATTER = "reduce_scatter_tensor" if IS_OLD else "reduce_scatter_single"


def gather_single(into: torch.Tensor, own: torch.Tensor) -> None:
    getattr(dist, GATHER)(into, own)


def scatter_single(into: torch.Tensor, own: torch.Tensor) -> None:
    getattr(dist, SCATTER)(into, own)


@pytest.mark.parametrize(
    ("call", "op", "sizes", "numel"),
    [
        (lambda: dist.all_reduce(ones(2, 3)), "all_reduce", ["6 x float32", "SUM"], 6),
        (lambda: dist.all_reduce(ones(2), op=dist.ReduceOp.MAX), "all_reduce", ["2 x float32", "MAX"], 2),
        (lambda: dist.broadcast(ones(4), 1), "broadcast", ["4 x float32", "root 1"], 4),
        (lambda: dist.broadcast(ones(4), group_src=0), "broadcast", ["4 x float32", "root 0"], 4),
        (lambda: dist.reduce(ones(4), 1), "reduce", ["4 x float32", "SUM", "root 1"], 4),
        (lambda: dist.all_gather(pair(3), ones(3)), "all_gather", ["3 x float32"], 3),
        (lambda: gather_single(ones(6), ones(3)), GATHER, ["3 x float32"], 3),
        (lambda: dist.gather(ones(3), pair(3), 0), "gather", ["3 x float32", "root 0"], 3),
        (lambda: dist.scatter(ones(3), pair(3), 0), "scatter", ["3 x float32", "root 0"], 3),
        (lambda: dist.reduce_scatter(ones(3), pair(3)), "reduce_scatter", ["3 x float32", "SUM"], 6),
        (lambda: scatter_single(ones(3), ones(6)), SCATTER, ["3 x float32", "SUM"], 6),
        (lambda: dist.all_to_all(pair(3), pair(3)), "all_to_all", [], 6),
        (lambda: dist.all_to_all_single(ones(4), ones(4)), "all_to_all_single", [], 4),
        (lambda: dist.barrier(), "barrier", [], 0),
    ],
)
def test_blocking_operation_is_reported_before_it_runs(
    judge: Answering, call: Callable[[], Any], op: str, sizes: list[str], numel: int
) -> None:
    call()
    (said,) = entered(judge)
    assert (said["op"], said["group"], said["sizes"], said["is_async"]) == (op, (0, 1), sizes, False)
    assert (said["numel"], said["num_bytes"], said["dtype"]) == (numel, 4 * numel, "float32" if numel else "")


def test_bytes_are_those_of_the_type_and_the_line_is_the_learners(judge: Answering) -> None:
    dist.all_reduce(ones(5, dtype=torch.float64))
    said = entered(judge)[0]
    assert (said["sizes"][0], said["num_bytes"]) == ("5 x float64", 40)
    assert said["line"] == ""  # this file is no file of a learner's
    layer = Layer(judge, [__file__], held=False)
    assert layer._line().startswith("test_reported_operations.py:")


def test_result_of_an_asynchronous_operation_arrives_on_its_wait(judge: Answering) -> None:
    tensor = torch.zeros(2)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work._pairs[0][1].fill_(7)  # type: ignore[attr-defined]  # the copy on which torch works
    assert (entered(judge)[0]["is_async"], tensor.tolist(), work.is_success()) == (True, [0, 0], False)
    assert work.wait()
    assert (tensor.tolist(), work.is_success(), work.result()) == ([7, 7], True, [tensor])
    work.wait()  # once more has no effect
    assert judge.sent[1:] == [{"type": "wait", "number": 0, "overwritten": False}]


def test_tensor_that_is_written_before_the_wait_is_reported(judge: Answering) -> None:
    first, second = torch.zeros(2), torch.zeros(2)
    works = [dist.all_reduce(first, async_op=True), dist.broadcast(second, 0, async_op=True)]
    second.add_(1)
    for work in works:
        assert work is not None
        work.wait()
    waits = [(said["number"], said["overwritten"]) for said in judge.sent if said["type"] == "wait"]
    assert waits == [(0, False), (1, True)]


def test_operation_is_complete_at_the_third_question(judge: Answering) -> None:
    work = dist.all_reduce(torch.zeros(2), async_op=True)
    assert work is not None
    assert [work.is_completed() for _ in range(4)] == [False, False, True, True]
    late = LateWork(Layer(judge, [], held=False), 0, None, [])
    assert late.source_rank() == 0
    late.wait()
    assert late.is_completed()


@pytest.mark.parametrize(
    ("call", "peer", "is_async", "tag"),
    [
        (lambda: dist.isend(ones(3), 1), 1, True, 0),
        (lambda: dist.isend(ones(3), group_dst=1, tag=4), 1, True, 4),
        (lambda: dist.irecv(ones(3), 1), 1, True, 0),
        (lambda: dist.irecv(ones(3), group_src=1, tag=5), 1, True, 5),
    ],
)
def test_message_is_reported_with_both_ranks(
    judge: Answering, call: Callable[[], Any], peer: int, is_async: bool, tag: int
) -> None:
    call()
    (said,) = entered(judge)
    assert (said["group"], said["peer"], said["tag"], said["batch"]) == ((0, 1), peer, tag, None)
    assert (said["is_async"], said["sizes"], said["numel"], said["num_bytes"]) == (is_async, ["3 x float32"], 3, 12)


def test_received_message_arrives_on_its_wait_and_a_sent_one_is_a_copy(judge: Answering) -> None:
    into, out = torch.zeros(2), torch.zeros(2)
    receiving, sending = dist.irecv(into, 1), dist.isend(out, 1)
    receiving._pairs[0][1].fill_(3)  # type: ignore[union-attr]
    assert sending._pairs == []  # type: ignore[union-attr]
    receiving.wait()  # type: ignore[union-attr]
    assert into.tolist() == [3, 3]


def test_new_group_is_an_operation_of_all_ranks(judge: Answering) -> None:
    group = dist.new_group([0])
    dist.all_reduce(ones(2), group=group)
    dist.new_group()
    said = entered(judge)
    assert [(each["op"], each["group"], each["sizes"]) for each in said] == [
        ("new_group", (0, 1), ["ranks [0]"]),
        ("all_reduce", (0,), ["2 x float32", "SUM"]),
        ("new_group", (0, 1), ["ranks [0, 1]"]),
    ]


@pytest.mark.parametrize(("held", "expected"), [(True, 20), (False, 0)])
def test_first_20_operations_of_a_held_rank_begin_late(
    judge: Answering, monkeypatch: pytest.MonkeyPatch, held: bool, expected: int
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(collectives.time, "sleep", pauses.append)
    layer = Layer(judge, [], held=held)
    assert [layer._enter("barrier", (0,), [], [], False) for _ in range(22)] == list(range(22))
    assert pauses == [0.002] * expected
