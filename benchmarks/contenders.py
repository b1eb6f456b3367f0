"""The model sizes of the training benchmarks, and two ways to run a step: a plain loop, and Frog's."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from frog.core.config import ModelConfig, OptimizerConfig, RunConfig, StrategyConfig
from frog.train.comm import World
from frog.train.data import Batch
from frog.train.hardware import autocast
from frog.train.model import TinyTransformer
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.parallel.build_strategy import build_mesh, build_strategy

OPTIMIZER = OptimizerConfig(learning_rate=1e-3)
MAX_NORM = 1.0


@dataclass(frozen=True)
class Size:
    """A row of the comparison; the FFN width gives Frog's model as many parameters as the plain GPT."""

    name: str
    num_layers: int
    width: int
    num_heads: int
    sequence_length: int
    batch_size: int
    ffn_width: int

    def config(self, vocab_size: int) -> ModelConfig:
        return ModelConfig(
            vocab_size=vocab_size,
            hidden_size=self.width,
            intermediate_size=self.ffn_width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_heads,
            max_position_embeddings=self.sequence_length,
        )

    def batches(self, vocab_size: int, count: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
        """Return random tokens, and the next token of each."""
        shape = (self.batch_size, self.sequence_length + 1)
        generator = torch.Generator().manual_seed(seed)
        drawn = (torch.randint(0, vocab_size, shape, generator=generator) for _ in range(count))
        return [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for tokens in drawn]

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.num_layers} layers, {self.width} wide, {self.num_heads} heads, "
            f"sequence {self.sequence_length}, batch {self.batch_size}"
        )


SMALL = Size("small", 4, 128, 4, 64, 12, 344)
LARGER = Size("larger", 6, 384, 6, 256, 8, 1024)
TINY = Size("tiny", 2, 32, 2, 16, 4, 64)
"""A size for checking that a benchmark runs."""


class PlainLoop:
    """A step of a hand-written loop: AdamW in two groups, clipped gradients, gradients set to None.

    With `fused` None, AdamW uses torch's default, like nanoGPT on a CPU.
    """

    def __init__(self, model: nn.Module, fused: bool | None = None) -> None:
        self.model = model
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": OPTIMIZER.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=OPTIMIZER.learning_rate, betas=(OPTIMIZER.beta1, OPTIMIZER.beta2), eps=OPTIMIZER.eps, fused=fused
        )

    def step(self, tokens_BT: Tensor, labels_BT: Tensor) -> float:
        loss = self.model(tokens_BT, labels_BT)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


class FrogLoop:
    """A step of `frog.train.loop`, without its events, with any strategy."""

    def __init__(
        self, model: TinyTransformer, world: World, strategy: StrategyConfig | None = None, precision: str = "fp32"
    ) -> None:
        config = RunConfig(model.config, strategy=strategy or StrategyConfig())
        make_optimizer = functools.partial(build_optimizer, OPTIMIZER)
        mesh = build_mesh(config, world)
        self.strategy = build_strategy(config, mesh, model, make_optimizer, autocast(precision, world.device))
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(self, tokens_BT: Tensor, labels_BT: Tensor) -> float:
        batch = Batch(0, np.empty(0), tokens_BT.unsqueeze(0), labels_BT.unsqueeze(0), (1.0,))
        agreed = self.strategy.reduce(self.strategy.forward_backward(batch, lambda loss: loss), stop=False)
        self.strategy.clip(self.strategy.norm(), MAX_NORM)
        self.strategy.step(self.scaler)
        self.strategy.zero()
        return agreed.loss


def run_block(loop: PlainLoop | FrogLoop, batches: list[tuple[Tensor, Tensor]]) -> tuple[float, list[float]]:
    """Return the milliseconds per step on the slowest rank, and this rank's losses."""
    dist.barrier()
    start = time.perf_counter()
    losses = [loop.step(*batch) for batch in batches]
    slowest = torch.tensor((time.perf_counter() - start) * 1e3 / len(batches))
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item(), losses
