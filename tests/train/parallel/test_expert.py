"""The order of rows, and the experts that one rank keeps, without a world."""

from __future__ import annotations

import pytest
import torch

from frog.core.config import ModelConfig, StrategyConfig
from frog.core.config.strategy import strategy_problems
from frog.core.errors import ConfigError
from frog.train.comm import Axis
from frog.train.comm.axis import Silent
from frog.train.model import TinyTransformer
from frog.train.parallel.mesh import check_experts, groups
from frog.train.parallel.model.expert import by_expert, expert_names, shard_experts

MIXTURE = ModelConfig(50, 16, 24, 2, 2, 1, 16, num_local_experts=6)


def test_rows_are_sorted_by_expert_then_sender() -> None:
    counts_ne = torch.tensor([[1, 2], [0, 1], [3, 0]])
    rows = ["0a", "0b", "0b'", "1b", "2a", "2a'", "2a''"]
    assert [rows[i] for i in by_expert(counts_ne)] == ["0a", "2a", "2a'", "2a''", "0b", "0b'", "1b"]
    assert by_expert(torch.zeros(2, 3, dtype=torch.long)).tolist() == []


def test_rank_keeps_its_experts_and_averages_their_gradients() -> None:
    model = TinyTransformer(MIXTURE)
    names = expert_names(model)
    assert names == [f"layers.{i}.mlp.experts.{stack}" for i in range(2) for stack in ("gate_up_proj", "down_proj")]
    whole = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    shard_experts(model, Axis("ep", [4, 5, 6], 5, torch.device("cpu"), None, [Silent()]))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, whole[name][2:4] if name in names else whole[name])
        parameter.sum().backward()
        assert parameter.grad is not None
        assert set(parameter.grad.unique().tolist()) == {torch.tensor(1 / 3).item() if name in names else 1.0}


def test_expert_parallelism_over_one_rank_changes_nothing() -> None:
    model = TinyTransformer(MIXTURE)
    shard_experts(model, Axis("ep", [0], 0, torch.device("cpu"), None, [Silent()]))
    assert all("run_experts" not in vars(layer.mlp) for layer in model.layers)


def problems(model: ModelConfig, world_size: int, **strategy: object) -> str:
    return "\n".join(strategy_problems(StrategyConfig(**strategy), model, 16, 1, world_size))  # type: ignore[arg-type]


def test_invalid_expert_layouts_are_rejected() -> None:
    dense = ModelConfig(50, 16, 24, 2, 2, 1, 16)
    assert problems(MIXTURE, 4, ep=2) == problems(dense, 4) == ""
    assert "strategy.ep=2: this model has no experts" in problems(dense, 4, ep=2)
    assert "strategy.ep=2 does not divide the 3 dp ranks" in problems(MIXTURE, 3, ep=2)
    assert "num_local_experts=6 is not a multiple of strategy.ep=4" in problems(MIXTURE, 4, ep=4)
    assert "strategy.tp=2 with num_local_experts=6" in problems(MIXTURE, 2, tp=2)
    assert "strategy.ep=2 with strategy.implementation='torch'" in problems(MIXTURE, 2, ep=2, implementation="torch")


def test_expert_data_axis_has_ranks_with_the_same_experts() -> None:
    sizes = {"pp": 1, "row": 2, "ep": 2, "cp": 2, "tp": 1}
    assert groups(sizes, ("ep",)) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups(sizes, ("row", "cp")) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    check_experts(2, 4)
    with pytest.raises(ConfigError, match="ep 3 does not divide dp 4"):
        check_experts(3, 4)
