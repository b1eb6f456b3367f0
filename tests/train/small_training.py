"""Training in a world of one without the loop's files: its model, optimizer, state and checkpoints."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from frog.core.config import DataConfig, ModelConfig, OptimizerConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.env import world_env
from frog.core.runs.folder import RunFolder
from frog.train.checkpoint import Checkpoint, Saver
from frog.train.comm import World
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.optim.learning_rate import learning_rate
from frog.train.parallel.build_strategy import build_mesh, build_strategy
from frog.train.prove.prove_rank import Case, local_batch, make_model
from frog.train.state import TrainState

NUM_STEPS = 6
MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=16,
)


def small_run(optimizer: OptimizerConfig, strategy: str = "ddp") -> RunConfig:
    """A run of `NUM_STEPS` steps."""
    return RunConfig(
        model=MODEL,
        data=DataConfig(sequence_length=8),
        train=TrainConfig(steps=NUM_STEPS, global_batch_size=4),
        strategy=StrategyConfig(strategy),
        optimizer=optimizer,
    )


class SmallTraining:
    """Steps of a run on the random batches of `frog prove`. The weights start from `seed`."""

    def __init__(self, config: RunConfig, seed: int) -> None:
        self.case = Case("small", config, frozen=False, uneven=False)
        world = World(world_env(), torch.device("cpu"), timeout_s=10)
        self.strategy = build_strategy(
            config, build_mesh(config, world), make_model(self.case, seed), partial(build_optimizer, config.optimizer)
        )
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.state = TrainState(self.strategy, self.scaler, self.strategy.shapes)

    def train_until(self, last_step: int) -> None:
        """Run the steps after the last one, up to `last_step`."""
        strategy, optimizer = self.strategy, self.case.config.optimizer
        for step in range(self.state.step + 1, last_step + 1):
            loss = strategy.forward_backward(local_batch(self.case, strategy.mesh, step), lambda loss: loss)
            strategy.reduce(loss, stop=False)
            assert optimizer.grad_clip != "off"
            strategy.clip(strategy.norm(), optimizer.grad_clip)
            for group in strategy.optimizer.param_groups:
                group["lr"] = learning_rate(step, NUM_STEPS, optimizer)
            strategy.step(self.scaler)
            strategy.zero()
            self.state.step = step

    def save(self, folder: RunFolder) -> None:
        """Write a checkpoint of the last step."""
        shards, own = self.state.shards(), self.state.own()
        saver = Saver(folder, 0, 1, shards, own, attempt="x", keep_last=9, timeout_s=60)
        saver.save(self.state.step, self.state.scalars(""), own, shards)
        saver.wait()

    def load(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        self.state.load(checkpoint, rank=0)


def tensors_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint: weights and optimizer state."""
    whole = {name: torch.empty(entry.shape) for name, entry in checkpoint.manifest.tensors.items()}
    checkpoint.load_into(whole)
    return whole
