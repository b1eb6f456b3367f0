"""RL post-training (GRPO): responses are generated, their log-probabilities computed, the policy trained, and its new
weights sent to the generator.

The generator and the trainer share the same GPUs, one after the other, or have their own. With own GPUs, one step off
policy, the next responses are generated while the policy is trained on the last ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from frog.core.errors import ConfigError
from frog.plan.estimate.predict import spread_of
from frog.plan.estimate.rows import PlannedRun
from frog.plan.links import Group
from frog.plan.memory import CONTEXT_BYTES, USABLE
from frog.plan.rl.rollout import Rollout, spread_lengths
from frog.plan.serve.server import Server, ServerMemory
from frog.plan.serve.serving import SPREAD

_SENT_BYTES = 2
"""Bytes of a weight on its way to the generator."""
_EXPERTS_WIDER = 5.0
"""Factor of the range's upper part for mixtures of experts, whose published steps took up to 3.1 times as long as
planned. No published step was shorter than its plan."""
HOST_BYTES_PER_S = 25e9
"""Assumed: copies between a GPU and pinned memory of its host; PCIe 4.0 x16 has 32 GB/s."""


@dataclass(frozen=True)
class RlStep:
    """Seconds of a step by part; with own GPUs some overlap."""

    generation: float
    log_probabilities: float
    """The policy's before the update, and the reference model's."""
    training: float
    synchronization: float
    """New weights to the generator."""
    offloading: float
    """The trainer's states to the host's memory and back, if they leave room for the generator."""


@dataclass(frozen=True)
class PostTraining:
    """A plan of RL post-training."""

    run: PlannedRun
    """The trainer: one optimizer step on packed sequences of a prompt and a mean response."""
    server: Server
    num_generating: int
    """GPUs of the generator; 0: it shares the trainer's."""
    prompts: int
    samples: int
    prompt: int
    lengths: tuple[int, ...]
    """Tokens of the responses, or quantiles of them."""
    reference: bool = True
    """A frozen reference model computes log-probabilities, too."""
    offloads: bool = True
    """On shared GPUs, states and reference model are in the host's memory while the GPU does not need them."""
    off_policy: bool = False
    """The generator works on the next step while the trainer works on this one."""
    usable: float = 0.9
    update: int | None = None
    """Sequences of an optimizer step; None: those of the trainer's layout, which has packs if it packs them."""

    @property
    def shares(self) -> bool:
        return not self.num_generating

    @property
    def num_training(self) -> int:
        return self.run.layout.num_gpus

    @property
    def num_gpus(self) -> int:
        return self.num_training + self.num_generating

    @property
    def replicas(self) -> int:
        return (self.num_generating or self.num_training) // self.server.tp

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    @property
    def updates(self) -> int:
        """Optimizer steps of a step."""
        return self.sequences // self.update_sequences

    @property
    def update_sequences(self) -> int:
        """Sequences of an optimizer step."""
        return self.update or self.run.layout.global_batch

    # ---- memory ------------------------------------------------------------------------------------------------------

    @cached_property
    def reference_bytes(self) -> float:
        """Bytes of the reference model in 16 bits on a trainer's GPU, split as the policy's parameters are."""
        if not self.reference:
            return 0.0
        layout = self.run.layout
        shared, experts = layout.stage_parameters(self.run.model)
        return 2.0 * (layout.split(shared, experts) if layout.zero >= 3 else shared + experts)

    @property
    def moves_states(self) -> bool:
        return self.shares and self.offloads

    @property
    def training_bytes(self) -> float:
        """Bytes of a trainer's GPU while it trains; a generator on the same GPU has freed its weights and cache."""
        return self.run.step.memory.total + (0.0 if self.moves_states else self.reference_bytes)

    @property
    def kept_bytes(self) -> float:
        """Bytes of the trainer that stay on a GPU while it generates."""
        stays = self.shares and not self.offloads
        return self.run.step.memory.states + self.reference_bytes if stays else 0.0

    @property
    def generating_bytes(self) -> float:
        """Bytes of a generator's GPU with a full KV cache."""
        return self.kept_bytes + self.server_memory.total

    @property
    def server_memory(self) -> ServerMemory:
        return self.server.memory(self.slots, self.prompt, self.mean_length)

    @property
    def mean_length(self) -> int:
        """Mean tokens of a response, rounded up."""
        return -(-sum(self.lengths) // len(self.lengths))

    @cached_property
    def slots(self) -> int:
        """Sequences that a replica generates at a time: so many of mean length fit into a paged cache.

        Raises:  ConfigError if not even one fits.
        """
        room = self.usable * self.server.cluster.gpu.memory - self.kept_bytes
        num_fitting = self.server.largest_batch(self.prompt, self.mean_length, room)
        if not num_fitting:
            weights = (self.server.held_weights + CONTEXT_BYTES) / 2**30
            raise ConfigError(
                f"no sequence fits next to the generator's weights: {weights:.1f} GiB with CUDA, of "
                f"{max(0.0, room) / 2**30:.1f} GiB that are free on a GPU",
                "a larger --generator-tp, more GPUs, --offload yes, or --generator-gpus of its own",
            )
        return min(num_fitting, -(-self.sequences // self.replicas))

    @property
    def fits(self) -> bool:
        return self.training_bytes <= USABLE * self.run.cluster.gpu.memory

    # ---- time --------------------------------------------------------------------------------------------------------

    @cached_property
    def rollout(self) -> Rollout:
        """The responses of one replica."""
        num = -(-self.sequences // self.replicas)
        ordered = sorted(self.lengths)
        lengths = [ordered[min(len(ordered) - 1, int((i + 0.5) * len(ordered) / num))] for i in range(num)]
        lengths[-1] = ordered[-1]
        return Rollout(self.server, self.prompt, tuple(lengths), self.samples, self.slots)

    @cached_property
    def step(self) -> RlStep:
        passes = self.run.step.stages[0]
        forward, both = passes.forward.total, passes.total.total
        whole = self.run.step.step
        training = self.updates * whole.total
        one_forward = self.updates * (whole.total - whole.optimizer - whole.other) * forward / both
        num_forwards = 2 if self.reference else 1
        moved = 2 * (self.run.step.memory.states + self.reference_bytes) if self.moves_states else 0.0
        return RlStep(
            self.rollout.seconds,
            num_forwards * one_forward,
            training,
            self.synchronization,
            moved / HOST_BYTES_PER_S,
        )

    @property
    def synchronization(self) -> float:
        """Seconds to bring the policy's weights to all GPUs of the generator: a gather or a broadcast over all."""
        num_bytes = float(_SENT_BYTES * self.run.model.num_parameters())
        return float(self.run.step.links.gather(num_bytes, Group(self.num_gpus, 1)))

    @property
    def trainer_s(self) -> float:
        return self.step.log_probabilities + self.step.training

    @property
    def total_s(self) -> float:
        """Seconds of a step."""
        step = self.step
        both = step.generation, self.trainer_s
        return (max(both) if self.off_policy else sum(both)) + step.synchronization + step.offloading

    @property
    def idle_share(self) -> float:
        """Share of the GPUs' time in which they wait for the others, with GPUs of their own."""
        if self.shares:
            return 0.0
        busy = self.num_generating * self.step.generation + self.num_training * self.trainer_s
        return 1 - (busy + self.num_gpus * self.step.synchronization) / (self.num_gpus * self.total_s)

    @property
    def tokens(self) -> int:
        """Tokens of prompts and responses in a step."""
        mean = sum(self.lengths) / len(self.lengths)
        return round(self.sequences * (self.prompt + mean))

    @property
    def range_s(self) -> tuple[float, float]:
        """The range of a step's seconds, from the wider one of the generator's and the trainer's."""
        wider = _EXPERTS_WIDER if self.run.model.experts else 1.0
        below, above = (max(SPREAD * factor, spread_of(self.run)) for factor in (1.0, wider))
        return self.total_s / (1 + below), self.total_s * (1 + above)


def quantile_lengths(mean: int, longest: int) -> tuple[int, ...]:
    """Return the lengths that represent responses with this mean, of which the longest has `longest` tokens."""
    lengths = spread_lengths(mean, longest, 256)
    return (*lengths[:-1], longest) if mean < longest else tuple(lengths)
