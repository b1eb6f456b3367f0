"""Worlds on an NVIDIA GPU."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from harness import Harness, set_words

from frog.core.env import WorldEnv
from frog.core.runs.event_schema import StartEvent, StepEvent
from frog.train.comm.backend import BACKENDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
SETTINGS = ("train.steps=10", "checkpoint.every=10", "eval.every=10", "train.timeout_s=60")


def losses(harness: Harness, name: str) -> list[float]:
    return [step.loss for step in harness.events(name).main.by_step(StepEvent).values()]


def devices(harness: Harness, name: str) -> list[str]:
    return [rank.of(StartEvent)[0].device for rank in harness.events(name).ranks.values()]


def test_training_on_a_gpu_follows_training_on_the_cpu(harness: Harness) -> None:
    for device in ("cpu", "cuda"):
        harness.run("frog", "train", "run.toml", *set_words(f"name=on-{device}", f"train.device={device}", *SETTINGS))
    assert devices(harness, "on-cuda") == ["cuda:0"]
    assert losses(harness, "on-cuda") == pytest.approx(losses(harness, "on-cpu"), rel=1e-4)


def test_more_ranks_than_gpus_all_train_on_the_cpu(harness: Harness) -> None:
    num_ranks = torch.cuda.device_count() + 1
    words = ["train", "run.toml", *set_words("name=crowded", "train.global_batch_size=24", *SETTINGS)]
    harness.run("frog", "run", "--nproc", str(num_ranks), "--", *words)
    assert devices(harness, "crowded") == ["cpu"] * num_ranks


def test_nccl_starts_without_guessing_the_gpu(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    env = WorldEnv(0, 1, 0, 1, 0, 1, "127.0.0.1", None, True)
    x = torch.ones(4, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BACKENDS["nccl"].start(env, device, timeout_s=30, store=dist.FileStore(str(tmp_path / "store"), 1))
        try:
            dist.all_reduce(x)
            dist.barrier()
        finally:
            dist.destroy_process_group()
    assert x.tolist() == [1, 1, 1, 1]
