"""An optimizer in the host's memory: bytes that leave the GPU, and the seconds of transfers and of Adam there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frog.cli import main
from frog.core.errors import ConfigError
from frog.plan.estimate.explain import explain_memory, explain_step
from frog.plan.estimate.hardware import Cluster, clusters
from frog.plan.estimate.requests import request_run
from frog.plan.estimate.rows import read_row
from frog.plan.estimate.sources import NamedModel
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout, Traits
from frog.plan.model import PlannedModel

MODEL = PlannedModel(8, 1024, 8, 8, 128, 4096, 32000)
HOST: Cluster = replace(clusters()["h100x8"], host_link=50e9, host_memory=400e9)


def step_of(**changes: Any) -> StepModel:
    return StepModel(MODEL, Layout(**{"seq_len": 512, "global_batch": 64, "dp": 8, "zero": 1, **changes}), HOST)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_master_weights_and_moments_of_the_fraction_leave_the_gpu(fraction: float) -> None:
    matrices = 8 * (4 * 1024 * 1024 + 3 * 1024 * 4096) + 2 * 32000 * 1024
    norms = 8 * 2 * 1024 + 1024
    on_gpu = (matrices + norms) / 8 * (1 - fraction)
    memory = step_of(offload_optimizer=fraction).memory
    assert memory.optimizer == pytest.approx(sum(4 * on_gpu for _ in ("weight", "first moment", "second moment")))
    assert memory.parameters == step_of().memory.parameters
    assert memory.gradients == step_of().memory.gradients


@pytest.mark.parametrize(("gpus", "gradient_bytes"), [(8, 4), (8, 2), (2, 4), (64, 4)])
def test_host_moves_gradients_and_parameters_and_all_of_adam(gpus: int, gradient_bytes: int) -> None:
    step = step_of(dp=gpus, offload_optimizer=0.5, traits=Traits(gradient_bytes=gradient_bytes))
    numbers = MODEL.num_parameters() / gpus / 2
    on_a_node = min(8, gpus) * numbers
    reads, writes = (4, 4, 4, 4), (4, 4, 4, 2)
    sent = (gradient_bytes + 2) * numbers / (50e9 * step.constants.link)
    adam = (sum(reads) + sum(writes)) * on_a_node / (400e9 * step.constants.memory)
    on_gpu = step.kernels.moves(36 * numbers)
    assert step.optimizer == pytest.approx(sent + adam + on_gpu)


def test_more_on_the_host_is_slower_and_smaller() -> None:
    points = [step_of(offload_optimizer=fraction) for fraction in (0.0, 0.1, 0.5, 1.0)]
    seconds, memory = [point.step.total for point in points], [point.memory.total for point in points]
    assert seconds == sorted(seconds)
    assert memory == sorted(memory, reverse=True)


def test_explained_seconds_and_bytes_can_be_repeated() -> None:
    step = step_of(offload_optimizer=0.25)
    terms = {term.name: term for term in (*explain_step(step), *explain_memory(step, step.memory))}
    for name in ("optimizer", "optimizer on the host", "optimizer state"):
        assert eval(terms[name].sum) == pytest.approx(terms[name].value, rel=1e-4)
    assert terms["optimizer"].value == step.step.optimizer


@pytest.mark.parametrize(
    ("options", "cluster", "problem"),
    [
        ({}, "mi300xx8", "the cluster's profile has no host_link and host_memory"),
        ({"software": "torchtitan"}, "h100x8", "FSDP programs offload parameters, too"),
        ({"offload_optimizer": "1.5"}, "h100x8", "offload_optimizer=1.5: must be between 0 and 1"),
    ],
    ids=str,
)
def test_what_cannot_be_offloaded_is_refused(options: dict[str, str], cluster: str, problem: str) -> None:
    cells = {"software": "megatron", "offload_optimizer": "1", **options}
    with pytest.raises(ConfigError, match=problem):
        request_run(NamedModel(MODEL), cells, clusters()[cluster], 8)


def test_table_and_command_state_the_fraction(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"gpu": "H100-80GB", "n_gpus": "8", "layers": "8", "hidden": "1024", "heads": "8", "seq_len": "512"}
    run = read_row({**row, "global_batch": "8", "software": "DeepSpeed", "offload_optimizer": "1"})
    assert run.layout.offload_optimizer == 1
    assert run.cluster.host_memory == clusters()["h100x8"].host_memory
    command = ["plan", "config/llama3_8b.json", "--cluster", "h100x8", "--software", "deepspeed", "--zero", "2"]
    assert main([*command, "--offload-optimizer", "0.5"]) == 0
    assert "50 % of the optimizer on the host" in capsys.readouterr().out
