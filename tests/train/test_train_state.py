"""The state of a run: what a checkpoint of it holds, and what a resumed run gets back, also in another world."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_training import SmallTraining, small_run
from torch import Tensor

from frog.core.config import OptimizerConfig
from frog.core.errors import CheckpointError
from frog.core.runs.folder import RunFolder
from frog.train.checkpoint.load import open_checkpoint
from frog.train.comm.local_shard import LocalShard
from frog.train.state import TrainState, generators, restore_generators, take_whole, weights_sha256

SGD = OptimizerConfig("sgd")


class FewStrategy:
    """Rank 0 of a world, with two weights, their momentum, an outer momentum, and weights of its own in a round."""

    def __init__(self, world_size: int = 2, *, reduces: bool = False, own: bool = True) -> None:
        self.mesh = SimpleNamespace(world=SimpleNamespace(size=world_size))
        self.tensors = {name: torch.zeros(2) for name in ("a", "frozen", "momentum/a", "outer_momentum/a")}
        self._own = {"weights": torch.zeros(2), "errors": torch.zeros(2)} if own else {}
        self.counts, self._reduces, self.told = [torch.zeros(())], reduces, 0

    def step_counts(self) -> list[Tensor]:
        return self.counts

    def parameter_shards(self) -> list[LocalShard]:
        return [LocalShard(name, self.tensors[name], (0,), (2,)) for name in ("a", "frozen")]

    def moment_shards(self) -> list[LocalShard]:
        return [LocalShard(name, self.tensors[name], (0,), (2,)) for name in ("momentum/a", "outer_momentum/a")]

    def own(self) -> dict[str, Tensor]:
        return self._own

    def reduces(self, step: int) -> bool:
        return self._reduces

    def loaded(self, shards: list[LocalShard]) -> None:
        self.told += 1


class FewTensors:
    """A checkpoint that holds ones."""

    def __init__(
        self, names: tuple[str, ...], own: dict[str, Tensor] | None, world_size: int = 2, **state: Any
    ) -> None:
        self.path, self.step, self.world_size, self._own = Path("c"), 7, world_size, own
        self.manifest = SimpleNamespace(tensors=dict.fromkeys(names))
        self.state = {"step": 7, "tokens": 70, "optimizer_steps": 6, "scaler": {}, "order_sha256": "o", **state}
        self.loaded: list[str] = []

    def load_into(self, shards: list[LocalShard]) -> None:
        for shard in shards:
            self.loaded.append(shard.name)
            shard.tensor.fill_(1.0)

    def load_own(self, rank: int) -> dict[str, Tensor] | None:
        return self._own


def state_of(strategy: Any, scaler: torch.amp.GradScaler | None = None) -> TrainState:
    return TrainState(strategy, scaler or torch.amp.GradScaler("cpu", enabled=False), {"a"})


WHOLE = ("model/a", "optimizer/momentum/a", "optimizer/outer_momentum/a")


def test_shards_are_those_of_trained_weights_and_of_the_optimizer() -> None:
    assert [shard.name for shard in state_of(FewStrategy()).shards()] == list(WHOLE)


def test_generators_continue_after_a_resume(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    first = SmallTraining(small_run(SGD), seed=0)
    first.train_until(2)
    torch.manual_seed(5)
    first.save(folder)
    expected = torch.rand(3)
    torch.manual_seed(6)
    other = SmallTraining(small_run(SGD), seed=1)
    other.load(open_checkpoint(folder.checkpoint(2)))
    assert torch.equal(torch.rand(3), expected)
    # A rank that did not exist when the checkpoint was written keeps its own.
    torch.manual_seed(6)
    before = torch.get_rng_state()
    other.state.load(open_checkpoint(folder.checkpoint(2)), rank=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert other.state.step == 2


def test_scalars_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    strategy = FewStrategy()
    scaler = torch.amp.GradScaler("cpu", 64.0)
    state = state_of(strategy, scaler)
    state.step, state.tokens, state.loss_mean = 7, 70, 2.5
    strategy.counts[0].fill_(6)
    now = 103.0
    scalars = state.scalars("link")
    assert scalars == {
        "step": 7, "tokens": 70, "loss_mean": 2.5, "wall_s": 3.0, "order_sha256": "link", "apart": True,
        "scaler": scaler.state_dict(), "optimizer_steps": 6,
    }  # fmt: skip
    assert scaler.state_dict()["scale"] == 64.0
    other_strategy = FewStrategy()
    other = state_of(other_strategy, torch.amp.GradScaler("cpu", 2.0))
    filled: list[str] = []
    assert other.take_over(lambda shards: filled.extend(shard.name for shard in shards), scalars) == "link"
    assert (filled, other_strategy.told) == (list(WHOLE), 1)
    now = 105.0
    assert (other.step, other.tokens, other.loss_mean, other.wall_s) == (7, 70, 2.5, 5.0)
    assert other_strategy.counts[0] == 6
    assert other.scalars("link")["scaler"] == scalars["scaler"]
    # A scaler that is off has no state, and takes none.
    plain = state_of(FewStrategy())
    plain.take_over(lambda shards: None, scalars)
    assert plain.scalars("")["scaler"] == {}
    enabled = torch.amp.GradScaler("cpu", 2.0)
    state_of(FewStrategy(), enabled).take_over(lambda shards: None, {**scalars, "scaler": {}})
    assert enabled.get_scale() == 2.0


@pytest.mark.parametrize(("step", "reduces", "apart"), [(0, False, False), (3, False, True), (3, True, False)])
def test_ranks_are_apart_within_a_round(step: int, reduces: bool, apart: bool) -> None:
    state = state_of(FewStrategy(reduces=reduces))
    state.step = step
    assert state.scalars("")["apart"] == apart


def test_checkpoint_of_another_strategy_may_lack_only_the_outer_state() -> None:
    rng = generators()
    for names, loaded in ((WHOLE, list(WHOLE)), (WHOLE[:2], list(WHOLE[:2])), (WHOLE[:1], list(WHOLE[:2]))):
        checkpoint: Any = FewTensors(names, rng)
        strategy = FewStrategy()
        assert state_of(strategy).load(checkpoint, 0) == "o"
        assert checkpoint.loaded == loaded  # a momentum that is missing is asked for, which is an error
        assert strategy.told == 1


@pytest.mark.parametrize(
    ("world_size", "own", "apart", "copied"),
    [
        (2, ("weights", "errors"), True, ("weights", "errors")),
        (2, ("weights",), True, ("weights",)),
        (2, ("weights", "errors"), False, ("weights", "errors")),
        (2, (), True, None),
        (2, (), False, ()),
        (3, ("weights", "errors"), True, None),
        (3, ("weights", "errors"), False, ()),
    ],
)
def test_own_state_of_a_rank_needs_a_world_of_the_same_size(
    world_size: int, own: tuple[str, ...], apart: bool, copied: tuple[str, ...] | None
) -> None:
    saved = generators() | {f"own/{name}": torch.ones(2) for name in own}
    checkpoint: Any = FewTensors(WHOLE, saved, world_size, apart=apart)
    strategy = FewStrategy()
    if copied is None:
        with pytest.raises(CheckpointError, match="c: step 7 is in the middle of a DiLoCo round"):
            state_of(strategy).load(checkpoint, 0)
    else:
        state_of(strategy).load(checkpoint, 0)
    for name, tensor in strategy.own().items():
        assert tensor.tolist() == ([1.0, 1.0] if name in (copied or ()) else [0.0, 0.0])


def test_own_state_of_a_checkpoint_has_the_generators_and_the_strategys() -> None:
    own = state_of(FewStrategy()).own()
    assert {"rng/cpu", "own/weights", "own/errors"} <= own.keys()
    torch.rand(1)
    restore_generators(own)
    assert torch.equal(torch.get_rng_state(), own["rng/cpu"])


def test_hash_of_weights_depends_on_names_and_values_only() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [4.0]])
    known = weights_sha256([("a", a), ("b", b)])
    assert weights_sha256(iter([("b", b.clone()), ("a", a.double())])) == known
    assert weights_sha256([("a", b), ("b", a)]) != known
    assert weights_sha256([("a", a), ("c", b)]) != known
    assert weights_sha256([("a", a), ("b", b + 1e-6)]) != known


def test_whole_weights_are_copied_only_where_there_is_a_model() -> None:
    model = torch.nn.Linear(2, 1)
    yielded: list[str] = []

    def whole() -> Any:
        for name in ("weight", "bias"):
            yielded.append(name)
            yield name, torch.full_like(dict(model.named_parameters())[name], 3.0)

    strategy: Any = SimpleNamespace(whole=whole)
    take_whole(strategy, None)  # it takes part in the collectives
    assert yielded == ["weight", "bias"]
    assert not torch.equal(model.bias, torch.full((1,), 3.0))
    take_whole(strategy, model)
    assert model.weight.tolist() == [[3.0, 3.0]]
    assert model.bias.tolist() == [3.0]
