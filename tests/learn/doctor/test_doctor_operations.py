"""The doctor's operations: right results of both ranks pass, and any other number is reported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from frog.learn.doctor import doctor_rank

VALUES = torch.tensor([[1, 3, -2, 8], [4, 6, 8, -1]], dtype=torch.float64)
REDUCED = {
    "SUM": VALUES.sum(0),
    "AVG": VALUES.mean(0),
    "MIN": VALUES.min(0).values,
    "MAX": VALUES.max(0).values,
    "PRODUCT": VALUES.prod(0),
}


class Ranks:
    """torch.distributed as one of two ranks sees it, from the inputs of both. wrong: added to each result."""

    ReduceOp = SimpleNamespace(**{name: name for name in REDUCED})

    def __init__(self, rank: int, wrong: float = 0.0) -> None:
        self.rank, self.wrong, self.types = rank, wrong, set()  # type: ignore[var-annotated]

    def fill(self, into: Tensor, values: Tensor) -> None:
        into.copy_(values + self.wrong)

    def own(self, x: Tensor) -> Tensor:
        assert x.tolist() == VALUES[self.rank].tolist()
        return x

    def all_reduce(self, x: Tensor, op: str, group: Any) -> None:
        self.types.add(x.dtype)
        self.fill(self.own(x), REDUCED[op])

    def all_gather(self, parts: list[Tensor], x: Tensor, group: Any) -> None:
        for part, values in zip(parts, VALUES, strict=True):
            self.fill(part, values)

    def reduce_scatter(self, part: Tensor, parts: list[Tensor], group: Any) -> None:
        self.own(torch.cat(parts))
        self.fill(part, REDUCED["SUM"].chunk(2)[self.rank])

    def broadcast(self, x: Tensor, source: int, group: Any) -> None:
        self.fill(self.own(x), VALUES[source])

    def reduce(self, x: Tensor, target: int, group: Any) -> None:
        if self.rank == target:
            self.fill(self.own(x), REDUCED["SUM"])

    def gather(self, x: Tensor, parts: list[Tensor] | None, target: int, group: Any) -> None:
        assert (parts is not None) == (self.rank == target)
        self.own(x)
        if parts is not None:
            self.all_gather(parts, x, group)

    def scatter(self, part: Tensor, parts: list[Tensor] | None, source: int, group: Any) -> None:
        assert (parts is not None) == (self.rank == source)
        if parts is not None:
            self.own(torch.cat(parts))
        self.fill(part, VALUES[source].chunk(2)[self.rank])

    def all_to_all_single(self, out: Tensor, x: Tensor, group: Any) -> None:
        self.own(x)
        self.fill(out, torch.cat([values.chunk(2)[self.rank] for values in VALUES]))

    def send(self, x: Tensor, peer: int, group: Any) -> None:
        self.own(x)
        assert peer == 1 - self.rank

    def recv(self, x: Tensor, peer: int, group: Any) -> None:
        self.fill(x, VALUES[peer])

    def barrier(self, group: Any) -> None: ...


class Store:
    """A store in which the other rank has arrived, or has not."""

    def __init__(self, came: bool) -> None:
        self.came = came

    def set(self, name: str, value: str) -> None:
        self.came = True

    def check(self, names: list[str]) -> bool:
        return self.came


NAMES = [name for name in doctor_rank.operations(None) if name != "barrier"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_right_results_of_an_operation_pass_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch, name: str, rank: int
) -> None:
    run = doctor_rank.operations(None)[name]
    right = Ranks(rank)
    monkeypatch.setattr(doctor_rank, "dist", right)
    assert doctor_rank._right(run, rank, None) == "right"
    if name.startswith("all_reduce"):
        floats = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
        assert right.types == (floats if name == "all_reduce AVG" else floats | {torch.int64})
    if (name, rank) in (("reduce", 0), ("gather", 0)):
        return  # only rank 1 has a result
    for wrong in (1.0, -1.0):
        monkeypatch.setattr(doctor_rank, "dist", Ranks(rank, wrong))
        with pytest.raises(ValueError, match=r"^wrong: \[.*\] in float32, expected \["):
            run(rank, None)


def test_barrier_that_does_not_wait_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_rank, "dist", Ranks(0))
    monkeypatch.setattr(doctor_rank.time, "sleep", lambda seconds: None)
    doctor_rank.operations(Store(came=True))["barrier"](0, None)
    doctor_rank.operations(Store(came=False))["barrier"](1, None)
    with pytest.raises(ValueError, match="rank 0 continued before rank 1 arrived"):
        doctor_rank.operations(Store(came=False))["barrier"](0, None)


def test_product_of_matrices_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_rank._computes("cpu") == f"works, with {torch.get_num_threads()} threads"
    monkeypatch.setattr(torch, "ones", lambda *sizes, device: torch.full(sizes, 2.0))
    with pytest.raises(ValueError, match=r"a matrix product sums to 1048576\.0, expected 262144\.0"):
        doctor_rank._computes("cpu")
