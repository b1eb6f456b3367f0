"""The complete state of a run, saved and restored so that training continues as if it had never stopped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frog.core.errors import CheckpointError
from frog.train.checkpoint import Checkpoint
from frog.train.comm.local_shard import LocalShard
from frog.train.parallel.strategy import Strategy


class TrainState:
    """The state of a run: tensors (weights, optimizer), scalars (steps, tokens, order, loss scale), random generators.

    The position in the data follows from the step. Only weights named in `trained` change, so only they are saved.
    """

    def __init__(self, strategy: Strategy, scaler: torch.amp.GradScaler, trained: Collection[str]) -> None:
        self._strategy, self._trained = strategy, trained
        self._step_counts = strategy.step_counts()
        self._scaler = scaler
        self.step = 0
        self.tokens = 0
        self.loss_mean: float | None = None
        """Mean loss of the last step over all ranks."""
        self._wall_s_before, self._since_s = 0.0, time.monotonic()

    @property
    def wall_s(self) -> float:
        """Seconds that the run's steps took, over all starts, without steps lost in failures."""
        return self._wall_s_before + time.monotonic() - self._since_s

    def shards(self) -> list[LocalShard]:
        """Return this rank's shards of the weights and of the optimizer state."""
        weights = [shard for shard in self._strategy.parameter_shards() if shard.name in self._trained]
        parameters = [replace(shard, name=f"model/{shard.name}") for shard in weights]
        moments = [replace(shard, name=f"optimizer/{shard.name}") for shard in self._strategy.moment_shards()]
        return [*parameters, *moments]

    def own(self) -> dict[str, Tensor]:
        """Return the state that belongs to this rank only: its random generators and the strategy's per-rank state."""
        return generators() | {f"own/{name}": tensor for name, tensor in self._strategy.own().items()}

    def scalars(self, order_link: str) -> dict[str, Any]:
        """Return the scalars of the checkpoint manifest."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "loss_mean": self.loss_mean,
            "wall_s": self.wall_s,
            "order_sha256": order_link,
            "apart": self.step > 0 and not self._strategy.reduces(self.step),
            "scaler": self._scaler.state_dict(),
            "optimizer_steps": int(self._step_counts[0]) if self._step_counts else 0,
        }

    def load(self, checkpoint: Checkpoint, rank: int) -> str:
        """Load a checkpoint of any world and strategy; return its data-order hash."""
        shards = [
            shard for shard in self.shards() if shard.name in checkpoint.manifest.tensors or not _may_be_new(shard)
        ]
        checkpoint.load_into(shards)
        self._strategy.loaded(shards)
        own = checkpoint.load_own(rank)
        if own is not None:
            restore_generators(own)
        self._load_own(checkpoint, own or {})
        return self._load_scalars(checkpoint.state)

    def take_over(self, fill: Callable[[Sequence[LocalShard]], None], scalars: dict[str, Any]) -> str:
        """Load the state from the memory of other ranks, through `fill`; return its data-order hash."""
        shards = self.shards()
        with torch.no_grad():
            fill(shards)
        self._strategy.loaded(shards)
        return self._load_scalars(scalars)

    def _load_scalars(self, state: dict[str, Any]) -> str:
        self.step, self.tokens = int(state["step"]), int(state["tokens"])
        self.loss_mean = state.get("loss_mean")  # absent in older checkpoints
        self._wall_s_before = state.get("wall_s", 0.0)
        for count in self._step_counts:
            count.fill_(state["optimizer_steps"])
        if self._scaler.is_enabled() and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        return str(state["order_sha256"])

    def _load_own(self, checkpoint: Checkpoint, found: dict[str, Tensor]) -> None:
        """Load the per-rank state if a world of this size wrote the checkpoint.

        Raises:  CheckpointError if the checkpoint holds different weights per rank and this world cannot use them.
        """
        world, wanted = self._strategy.mesh.world, self._strategy.own()
        fits = checkpoint.world_size == world.size and any(f"own/{name}" in found for name in wanted)
        if checkpoint.state.get("apart") and not fits:
            raise CheckpointError(
                f"{checkpoint.path}: step {checkpoint.step} is in the middle of a DiLoCo round: each of its "
                f"{checkpoint.world_size} ranks has different weights, so this world of {world.size} with another "
                "strategy or size cannot resume from it",
                f"resume with strategy.name=diloco and {checkpoint.world_size} ranks until the end of the round; any "
                "world can resume between rounds (make checkpoint.every a multiple of strategy.inner_steps)",
            )
        for name, tensor in wanted.items() if fits else ():
            if (kept := found.get(f"own/{name}")) is not None:
                tensor.copy_(kept)


def _may_be_new(shard: LocalShard) -> bool:
    """True if checkpoints of other strategies may lack this shard: outer optimizer state starts at zero."""
    return shard.name.startswith("optimizer/outer_")


def generators() -> dict[str, Tensor]:
    """Return the states of this rank's random generators, as bytes."""
    states = {"rng/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["rng/cuda"] = torch.cuda.get_rng_state()
    return states


def restore_generators(states: dict[str, Tensor]) -> None:
    """Restore the states that `generators` returned."""
    torch.set_rng_state(states["rng/cpu"])
    if torch.cuda.is_available() and "rng/cuda" in states:
        torch.cuda.set_rng_state(states["rng/cuda"])


def weights_sha256(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return the hex SHA-256 of all weights, ordered by name: models with equal hashes are bitwise equal."""
    digests = {}
    for name, tensor in weights:
        values = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
        digests[name] = hashlib.sha256(values.data).digest()
    total = hashlib.sha256()
    for name, digest in sorted(digests.items()):
        total.update(name.encode() + digest)
    return total.hexdigest()


def take_whole(strategy: Strategy, model: nn.Module | None) -> None:
    """Gather the strategy's parameters, which may be sharded, into `model` on each rank that passes one.

    A collective call.
    """
    named = dict(model.named_parameters()) if model is not None else {}
    with torch.no_grad():
        for name, weight in strategy.whole():
            if model is not None:
                named[name].copy_(weight)
