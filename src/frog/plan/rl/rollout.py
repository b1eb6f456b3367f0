"""A rollout: a generator answers prompts, with responses of different lengths, on replicas that keep their slots full.

While responses end one by one, fewer sequences share each reading of the weights, so the last ones take long: a rollout
lasts as long as its longest response.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from frog.plan.serve.server import Server

_MOST_SIMULATED = 512
"""Responses of a replica that are simulated; more are represented by so many."""
HOST_S = 2e-3
"""Seconds between two output tokens in which the GPU waits for the server: vLLM schedules in Python, prepares inputs
and reads what was sampled. Its own benchmark of batches of 8 on H200 takes 2.0 ms (Llama 3 8B), 1.9 (Mixtral) and 3.8
(70B, tp 4) longer for each token than its kernels are planned to; issue 6854 of vllm shows gaps of 4 ms and more."""


def spread_lengths(mean: float, longest: int, num: int) -> list[int]:
    """Return the lengths of `num` responses with this mean, at most `longest`: the quantiles of an exponential
    distribution that ends there, which is the one that assumes least (largest entropy) for this mean.
    """
    if mean >= longest:
        return [longest] * num
    rate = _rate_of(mean / longest)
    places = [(index + 0.5) / num for index in range(num)]
    return [max(1, round(longest * _quantile(place, rate))) for place in places]


def _quantile(place: float, rate: float) -> float:
    return place if abs(rate) < 1e-9 else -math.log1p(place * math.expm1(-rate)) / rate


def _rate_of(mean: float) -> float:
    """Return the rate of the exponential distribution on 0 to 1 with this mean, by bisection."""
    low, high = -700.0, 700.0
    for _ in range(100):
        rate = (low + high) / 2
        mean_at_rate = 0.5 if abs(rate) < 1e-6 else 1 / rate - 1 / math.expm1(rate)
        low, high = (rate, high) if mean_at_rate > mean else (low, rate)
    return (low + high) / 2


@dataclass(frozen=True)
class Rollout:
    """The responses of one replica: `samples` for each of some prompts."""

    server: Server
    prompt: int
    lengths: tuple[int, ...]
    """Tokens of each response."""
    samples: int
    """Responses to one prompt; a prefix cache computes it once."""
    slots: int
    """Sequences at a time, as far as the KV cache has room."""

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @cached_property
    def prefill_s(self) -> float:
        prompts = -(-len(self.lengths) // self.samples)
        return self.server.prefill(self.prompt, prompts)

    @cached_property
    def decode_s(self) -> float:
        """Seconds of all output tokens: sequences start in a random order as soon as a slot is free."""
        order, weight = self._represented()
        slots = max(1, round(self.slots / weight))
        waiting = order[::-1]
        running: list[tuple[int, int]] = []  # the steps at which sequences end, and at which they started
        step, seconds = 0, 0.0
        times: dict[tuple[int, int], float] = {}
        while running or waiting:
            while waiting and len(running) < slots:
                heapq.heappush(running, (step + waiting.pop(), step))
            active = len(running)
            end = running[0][0]
            mean_age = sum(step - start for _, start in running) / active
            heapq.heappop(running)
            context = self.prompt + mean_age + (end - step) / 2
            key = active, round(context / 64)
            if key not in times:
                times[key] = HOST_S + self.server.decode(active * weight, 64 * max(1, key[1])).total
            seconds += (end - step) * times[key]
            step = end
        return seconds

    def _represented(self) -> tuple[list[int], float]:
        """Return at most so many responses as are simulated, shuffled, and how many each stands for."""
        num = len(self.lengths)
        ordered: Sequence[int] = sorted(self.lengths)
        if num > _MOST_SIMULATED:
            ordered = [ordered[math.floor((i + 0.5) * num / _MOST_SIMULATED)] for i in range(_MOST_SIMULATED - 1)]
            ordered = [*ordered, max(self.lengths)]
        order = list(ordered)
        random.Random(0).shuffle(order)
        return order, num / len(order)

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s
