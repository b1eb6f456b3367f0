"""Settings that the native strategies reject before the start, and how they report a failure inside torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frog.core.config import StrategyConfig
from frog.core.env import world_env
from frog.core.errors import CommError, ConfigError
from frog.train.comm import World
from frog.train.parallel.torch_impl.native import check_compile, explained
from frog.train.parallel.torch_impl.torch_pipeline import PipelineStage, SpannedStage


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"implementation": "deepspeed", "name": "zero1"}, r"strategy\.implementation='deepspeed'"),
        ({"implementation": "torch", "tp": 2}, r"strategy\.tp=2 by torch"),
        ({"implementation": "torch", "pp": 2, "schedule": "zero_bubble"}, r"strategy\.schedule='zero_bubble'"),
    ],
)
def test_unsupported_compile_combination_is_rejected(strategy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.compile=true with " + said):
        check_compile(StrategyConfig(**strategy))


@pytest.mark.parametrize("strategy", [{}, {"name": "zero3"}, {"pp": 2}])
def test_supported_compile_combination_is_accepted(strategy: dict[str, Any]) -> None:
    check_compile(StrategyConfig(implementation="torch", **strategy))


def test_lost_peer_inside_torch_raises_comm_error() -> None:
    world = World(world_env(), torch.device("cpu"), timeout_s=1, requested_backend="gloo")
    with (
        pytest.raises(
            CommError, match=r"inside torch failed in the pipeline \[rank 0 of 1\]: Connection closed"
        ) as caught,
        explained(world, "the pipeline"),
    ):
        raise RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    assert caught.value.facts.cause == "closed"
    with pytest.raises(RuntimeError, match="shapes differ"), explained(world, "the pipeline"):
        raise RuntimeError("shapes differ")


def test_first_messages_between_stages_have_one_dtype_with_torch_2_9(monkeypatch: pytest.MonkeyPatch) -> None:
    received, sent = torch.zeros(1), torch.tensor(3)
    operations_of_2_9 = [SimpleNamespace(tensor=received), SimpleNamespace(tensor=sent)]
    monkeypatch.setattr(PipelineStage, "_get_init_p2p_neighbors_ops", lambda stage: operations_of_2_9, raising=False)
    stage = object.__new__(SpannedStage)
    first, second = stage._get_init_p2p_neighbors_ops()
    assert first.tensor is received
    assert second.tensor.dtype == torch.float32
