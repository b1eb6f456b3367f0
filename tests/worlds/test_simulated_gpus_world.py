"""Simulated GPUs in a world: a program for CUDA and NCCL computes what the same program computes on gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Harness

WORKER = Path(__file__).with_name("simulated_gpus_worker.py")

COLLECTIVES = Path(__file__).with_name("simulated_collectives_worker.py")


def losses(output: str) -> list[str]:
    return [line.removeprefix("rank 0 | ") for line in output.splitlines() if "0x" in line]


@pytest.mark.slow
def test_program_for_cuda_has_the_losses_of_the_same_program_for_gloo(harness: Harness) -> None:
    command = ("frog", "run", "--nproc", "2")
    simulated = harness.run(*command, "--simulate-gpus", "2", "--", str(WORKER), "cuda")
    plain = harness.run(*command, "--", str(WORKER), "cpu")
    assert len(losses(plain.stdout)) == 15
    assert losses(simulated.stdout) == losses(plain.stdout)
    assert simulated.stdout.count("1 call had no effect: torch.cuda.empty_cache") == 1
    assert "had no effect" not in plain.stdout


@pytest.mark.slow
def test_rank_beyond_the_last_simulated_gpu_fails_as_with_cuda(harness: Harness) -> None:
    done = harness.run("frog", "run", "--nproc", "2", "--simulate-gpus", "1", "--", str(WORKER), "cuda", code=1)
    assert "error: rank 1 (" in done.stderr
    assert "CUDA error: invalid device ordinal" in done.stderr


def test_collectives_and_wrappers_give_what_nccl_and_cuda_give(harness: Harness) -> None:
    done = harness.run("frog", "run", "--nproc", "2", "--simulate-gpus", "2", "--", str(COLLECTIVES))
    lines = [line.removeprefix("rank 0 | ") for line in done.stdout.splitlines() if " = " in line]
    assert lines == [
        "all_gather = [[1.0], [2.0, 2.0, 2.0]]",
        "all_to_all = [[0.0], [1.0]]",
        "reduce_scatter = [2.0]",
        "gather = [0.0, 0.0, 1.0, 1.0]",
        "future = ['then', [1.0, 1.0]]",
        "coalesced = [[0.0, 1.0], [0.0, 0.0, 1.0, 1.0]]",
        "replayed = [12.0, 12.0]",
        "ddp = cuda:0",
        "offloaded = True",
    ]
