"""The collectives that a strategy's file calls are recorded, and those of other callers stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from frog.train.comm import Axis
from frog.train.comm.axis import Silent
from frog.train.parallel.data.recorded import recorded

HERE = Path(__file__)
ELSEWHERE: dict[str, Any] = {"dist": dist}
exec(compile("def call(x): return dist.all_reduce(x)", "elsewhere.py", "exec"), ELSEWHERE)


class Notes(Silent):
    """A recorder that keeps all calls and waits."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, str, int]] = []
        self.waits: list[int] = []

    def __call__(self, op: str, axis: str, payload_bytes: int) -> Notes:
        self.begun.append((op, axis, payload_bytes))
        return self

    def done(self, end_ns: int, wait_ns: int) -> None:
        self.waits.append(wait_ns)


class Work:
    """A handle of torch's."""

    def __init__(self) -> None:
        self.num_waits = 0

    def wait(self) -> bool:
        self.num_waits += 1
        return True

    def is_completed(self) -> bool:
        return self.num_waits > 0


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """Replace torch's collectives by functions that send nothing."""

    def all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Work | None:
        return Work() if async_op else None

    def reduce_scatter_tensor(output: Any, input: Any, group: Any = None) -> None: ...

    def all_gather(tensor_list: Any, tensor: Any, group: Any = None) -> None: ...

    for function in (all_reduce, reduce_scatter_tensor, all_gather):
        monkeypatch.setattr(dist, function.__name__, function)
    return Notes()


def axis(notes: Notes, size: int = 2) -> Axis:
    return Axis("dp", range(size), 0, torch.device("cpu"), None, [notes])


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: dist.all_reduce(torch.zeros(3)), ("all_reduce", "dp", 12)),
        (lambda: dist.all_reduce(tensor=torch.zeros(3)), ("all_reduce", "dp", 12)),
        (lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(4)), ("reduce_scatter", "dp", 16)),
        (
            lambda: dist.reduce_scatter_tensor(input=torch.zeros(4), output=torch.zeros(2)),
            ("reduce_scatter", "dp", 16),
        ),
        (lambda: dist.all_gather([torch.zeros(2)] * 2, torch.zeros(2)), ("all_gather", "dp", 16)),
    ],
)
def test_call_is_recorded_with_its_bytes(notes: Notes, call: Callable[[], Any], expected: tuple[str, str, int]) -> None:
    with recorded(HERE, axis(notes)):
        assert call() is None
    assert notes.begun == [expected]
    assert len(notes.waits) == 1


def test_asynchronous_call_is_recorded_when_it_has_been_awaited(notes: Notes) -> None:
    with recorded(HERE, axis(notes)):
        work: Any = dist.all_reduce(torch.zeros(3), async_op=True)
    assert notes.waits == []
    assert not work.is_completed()
    assert work.wait()
    assert work.wait()
    assert work.is_completed()
    assert len(notes.waits) == 1


def test_calls_from_other_files_and_after_the_block_are_not_recorded(notes: Notes) -> None:
    before = dist.all_reduce
    with recorded(HERE, axis(notes)):
        ELSEWHERE["call"](torch.zeros(3))
    assert dist.all_reduce is before
    dist.all_reduce(torch.zeros(3))
    with recorded(HERE, axis(notes, size=1)):
        dist.all_reduce(torch.zeros(3))
    assert notes.begun == []


def test_functions_are_restored_after_an_error(notes: Notes) -> None:
    before = dist.all_reduce
    with pytest.raises(TypeError), recorded(HERE, axis(notes)):
        dist.all_reduce(1, 2, 3, 4, 5)
    assert dist.all_reduce is before
