"""A plan for serving: what one batch of requests needs on the replicas of a model, and what it costs.

In a server with continuous batching, sequences that end make room for new prompts: for each output token of a full
batch, batch / generated prompts are computed. The rate is the same as that of one batch after another without pauses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from frog.core.errors import ConfigError, UsageError
from frog.plan.serve.server import DecodeTime, Server, ServerMemory

SPREAD = 0.5
"""Width of the range around rates and times: nine of ten published rows are inside (docs/plan/kinds.md)."""


@dataclass(frozen=True)
class Serving:
    """Requests with prompts of one length and answers of another, on equal replicas."""

    server: Server
    batch: int
    """Sequences of one replica at a time."""
    prompt: int
    generate: int
    replicas: int = 1
    usable: float = 0.9
    """Share of a GPU's memory that a server may use: vLLM's `gpu_memory_utilization`."""

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.server.tp

    @cached_property
    def memory(self) -> ServerMemory:
        return self.server.memory(self.batch, self.prompt, self.generate)

    @property
    def usable_bytes(self) -> float:
        return self.usable * self.server.cluster.gpu.memory

    @cached_property
    def largest_batch(self) -> int:
        return self.server.largest_batch(self.prompt, self.generate, self.usable_bytes)

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.usable_bytes

    @cached_property
    def first_token_s(self) -> float:
        """Seconds to the first token of a prompt on an idle server."""
        return self.server.prefill(self.prompt)

    @cached_property
    def prefill_s(self) -> float:
        """Seconds of the prompts of a batch."""
        return self.server.prefill(self.prompt, self.batch)

    @cached_property
    def decode(self) -> DecodeTime:
        """The seconds of an output token, when half of the answer is there."""
        return self.server.decode(self.batch, self.prompt + self.generate / 2)

    @property
    def batch_s(self) -> float:
        """Seconds of a batch: its prompts and its answers, whose first token the prefill gives."""
        return self.prefill_s + (self.generate - 1) * self.decode.total

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all replicas."""
        return self.replicas * self.batch * self.generate / self.batch_s

    @property
    def cost_per_million(self) -> float | None:
        """What a million output tokens cost, if the price of a GPU is known."""
        price = self.server.cluster.price
        return None if price is None else price.amount * self.num_gpus / 3600 / self.tokens_per_s * 1e6


def check_server(server: Server) -> None:
    """Refuse a server that cannot exist, or whose weights do not fit.

    Raises:  UsageError or ConfigError with both numbers.
    """
    model, tp, gpu = server.model, server.tp, server.cluster.gpu
    if server.cluster.machine is not None or gpu.name == "CPU":
        raise UsageError("serving is planned for GPUs only", "name a cluster of GPUs, such as --cluster h100x8")
    if problems := model.problems():
        raise ConfigError("; ".join(problems))
    uneven = [f"heads={model.heads} do not divide by tp={tp}"] if model.heads % tp else []
    if model.kv_heads % tp and tp % model.kv_heads and model.latent is None:
        uneven.append(f"kv_heads={model.kv_heads} neither divide by tp={tp} nor divide it")
    if model.layers > model.moe_layers and model.ffn % tp:
        uneven.append(f"ffn={model.ffn} does not divide by tp={tp}")
    if model.moe_layers and model.expert_ffn % tp:
        uneven.append(f"expert_ffn={model.expert_ffn} does not divide by tp={tp}")
    if uneven:
        raise ConfigError("; ".join(uneven), "another --tp")
    if 1 in (server.weight_bytes, server.cache_bytes) and not gpu.peak_fp8:
        raise ConfigError(f"{gpu.name} has no float8 products", "--precision bf16 and --kv-cache-dtype auto")
