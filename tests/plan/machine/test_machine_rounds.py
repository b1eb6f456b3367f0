"""How often an operation of `frog plan calibrate` is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from frog.plan.machine.costs import Work
from frog.plan.machine.machine_rank import Stage
from frog.plan.machine.request import quick
from frog.train.comm import Axis
from frog.train.comm.axis import Silent


@pytest.mark.parametrize(
    ("known", "budget_s", "is_measured"),
    [
        ([], 1e9, True),
        ([1.0], 1e9, True),
        ([1.0, 1.04], 1e9, False),
        ([1.0, 1.5], 1e9, True),
        ([], 0.0, True),
        ([1.0], 0.0, True),
        ([1.0, 1.5], 0.0, False),
    ],
)
def test_operation_is_measured_until_rounds_agree_or_the_time_is_up(
    known: list[float], budget_s: float, is_measured: bool
) -> None:
    request = replace(quick(((1, 1),), cores=2), budget_s=budget_s, block_s=1e-6)
    stage = Stage(Axis("group", range(1), 0, torch.device("cpu"), None, [Silent()]), request, threads=1)
    work = Work(products=1.0)
    calls: list[int] = []
    stage.rounds["layer", "fp32", work] = list(known)
    stage.measure("layer", "fp32", work, lambda: calls.append(1))
    (sample,) = stage.samples()
    assert bool(calls) is is_measured
    if not is_measured:
        assert sample["seconds"] == pytest.approx(sum(known) / 2)
        assert sample["late"] is (known == [1.0, 1.5])
