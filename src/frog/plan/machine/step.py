"""The time of a run's step on a measured machine, by phase.

n ranks, A micro-batches. Costs of computation are those of a world of n, all of which compute at once.

| phase | computation | communication |
|---|---|---|
| forward, backward | A (layers x layer + head); 4/3 of a layer if it is recomputed | tp, cp, pp, ep; zero2, zero3 |
| reduce | the mean of the gradient, its norm on this rank | ddp, zero1; ranks agree on the loss |
| optimize | norm, clipping, update and reset of the rank's parameters | the norm; zero1 and zero2 gather |

Communication that runs next to computation hides only on cores that no rank uses; the time that bytes spend in a slow
network between nodes needs no core. A pipeline's ranks wait for each other, and share the cores only with those that
compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frog.core.config import RunConfig
from frog.core.errors import ConfigError
from frog.plan.layout import RankShare
from frog.plan.links import SlowNetwork
from frog.plan.machine.costs import Machine
from frog.plan.machine.work import head_work, layer_work, optimizer_work
from frog.plan.strategies import expected_bubble
from frog.plan.traffic import Flow, step_traffic

PASSES, REDUCE, OPTIMIZE = "forward, backward", "reduce", "optimize"
PHASES = (PASSES, REDUCE, OPTIMIZE)

_ZERO2 = frozenset({"optimizer", "gradients"})
_SMALL_BYTES = 64
"""A message on which ranks agree: the loss, the norm."""


@dataclass(frozen=True)
class PhaseTime:
    """Predicted seconds of a phase: computing, and exchanging data with other ranks."""

    computing_s: float
    communicating_s: float

    @property
    def total_s(self) -> float:
        return self.computing_s + self.communicating_s


def step_time(phases: dict[str, PhaseTime]) -> float:
    """Return the seconds of a step."""
    return sum(phase.total_s for phase in phases.values())


def predict_step(
    config: RunConfig, world_size: int, machine: Machine, network: SlowNetwork | None = None
) -> dict[str, PhaseTime]:
    """Return the phases of the rank that takes longest; with a network, between simulated nodes.

    Raises:  ConfigError with the reasons if the machine's costs do not cover the run.
    """
    if problems := [*config.world_problems(world_size), *uncovered(config, machine, network)]:
        raise ConfigError("\n".join(problems), "frog plan predicts other runs on this machine")
    stages = range(0, world_size, world_size // config.strategy.pp)
    ranks = [StepOnMachine(RankShare(config, world_size, rank), machine, network).phases for rank in stages]
    return max(ranks, key=step_time)


def uncovered(config: RunConfig, machine: Machine, network: SlowNetwork | None = None) -> list[str]:
    """Return what no measured cost covers."""
    strategy, train = config.strategy, config.train
    measured = next(iter(machine.worlds.values())).layer
    reasons = {
        f"strategy {strategy.entry.name}: no formula knows its traffic": not strategy.entry.has_formulas,
        "a mixture of experts: only dense layers are measured": config.model.num_local_experts is not None,
        f"train.precision={train.precision!r}: measured are {', '.join(measured)}": train.precision not in measured,
        "train.compile: only eager layers are measured": train.compile,
        f"strategy.compression={strategy.compression!r}: is not measured": strategy.compression != "off",
        "hybrid sharding over a slow network: has no formula": network is not None and strategy.shard is not None,
    }
    return [what for what, applies in reasons.items() if applies]


@dataclass(frozen=True)
class StepOnMachine:
    """One rank of a run on a machine."""

    share: RankShare
    machine: Machine
    network: SlowNetwork | None = None

    @property
    def phases(self) -> dict[str, PhaseTime]:
        """Return the time of each phase."""
        passes, communicating = self._passes(), dict.fromkeys(PHASES, 0.0)
        for flow in step_traffic(self.share.config, self.share.world_size, self.share.rank):
            for phase, share, hides in self._phases_of(flow):
                here_s, between_s = (share * seconds for seconds in self._flow_s(flow))
                hidden_s = min(self._spare * here_s + between_s, passes * 2 / 3) if hides else 0.0
                communicating[phase] += here_s + between_s - hidden_s
        agreed_s = self._all_reduce_s(_SMALL_BYTES)
        rides = self.share.sizes["tp"] * self.share.sizes["pp"] == 1 and not self._splits
        communicating[REDUCE] += 0.0 if rides else agreed_s + self._between_s("all_reduce", _SMALL_BYTES, "world")
        # One number: half of the ring's steps send nothing.
        communicating[OPTIMIZE] += 0.0 if rides else agreed_s + self._between_s("all_gather", _SMALL_BYTES, "world")
        computing = {PASSES: passes, REDUCE: self._moved_s(self._averaged_bytes), OPTIMIZE: self._optimizer_s()}
        return {phase: PhaseTime(computing[phase], communicating[phase]) for phase in PHASES}

    @property
    def _world(self) -> int:
        return self.share.world_size

    @property
    def _slowdown(self) -> float:
        return self.machine.slowdown(self._world)

    @property
    def _splits(self) -> frozenset[str]:
        return self.share.config.strategy.entry.splits if self.share.layout.data > 1 else frozenset()

    @property
    def _spare(self) -> float:
        """Fraction of a core for each rank that no rank uses."""
        threads = self.machine.nearest(self._world).threads
        return min(1.0, max(0.0, self.machine.cores / self._world - threads))

    def _passes(self) -> float:
        """Return the seconds of all micro-batches' passes, with a pipeline's bubble."""
        share, costs = self.share, self.machine.nearest(self._world)
        train, model, tp = share.config.train, share.model, share.sizes["tp"]
        work = layer_work(model, share.layout.tokens, share.config.data.sequence_length, tp, share.layout.stream_split)
        again = 4 / 3 if train.activation_checkpointing else 1.0
        seconds = share.num_layers * again * costs.layer[train.precision].seconds(work)
        if share.is_last_stage:
            seconds += costs.head[train.precision].seconds(head_work(model, share.layout.tokens, tp))
        seconds = share.num_micro * (seconds * self._slowdown + self._moved_s(self._collected_bytes))
        bubble = expected_bubble(share.config)
        if bubble is None:
            return seconds
        busy = max(1.0, self._world * costs.threads / self.machine.cores)
        return seconds / busy * max(busy, 1 / (1 - bubble))

    @property
    def _collected_bytes(self) -> float:
        """Bytes that zero2 and zero3 move for each micro-batch: a buffer's zeros, the gradients into it, their sum."""
        return 4.0 * self.share.parameter_bytes if "gradients" in self._splits else 0.0

    @property
    def _averaged_bytes(self) -> float:
        """Bytes that the mean of the gradient reads and writes, and that its norm reads before."""
        if self.share.layout.data == 1:
            return 0.0
        held = self.share.partition_bytes if "gradients" in self._splits else self.share.parameter_bytes
        return held * (2.0 if self._overlaps or self._splits else 3.0)

    @property
    def _overlaps(self) -> bool:
        return self.share.config.strategy.reduction == "overlapped"

    def _moved_s(self, num_bytes: float) -> float:
        return num_bytes * self.machine.nearest(self._world).memory_s * self._slowdown

    def _optimizer_s(self) -> float:
        share = self.share
        held = share.partition_bytes if "optimizer" in self._splits else share.parameter_bytes
        work = optimizer_work(held / 4, len(share.config.optimizer.state))
        return self.machine.nearest(self._world).optimizer.seconds(work.num_bytes) * self._slowdown

    # ---- communication -----------------------------------------------------------------------------------------------

    def _phases_of(self, flow: Flow) -> Iterator[tuple[str, float, bool]]:
        """Yield the phases in which a flow runs, with its share in each, and whether it runs next to computation."""
        share, entry = self.share, self.share.config.strategy.entry
        if flow.axis not in ("replicate", share.data_axis, share.shard_axis):
            yield REDUCE if flow.axis == "tied" else PASSES, 1.0, False
        elif any(transfer.op == flow.op and transfer.every == "micro-batch" for transfer in entry.transfers):
            yield PASSES, 1.0, True
        elif flow.op == "all_gather":
            yield OPTIMIZE, 1.0, False
        else:
            # Overlapped, all buckets but the last are sent during the backward pass.
            early = 1 - 1 / flow.num_messages if self._overlaps and flow.op == "all_reduce" else 0.0
            yield PASSES, early, True
            yield REDUCE, 1 - early, False

    def _flow_s(self, flow: Flow) -> tuple[float, float]:
        """Return the seconds of a flow's messages, on this machine and between nodes.

        The mean over a round if its ranks synchronize once per round.
        """
        op = {"send": "send_recv", "recv": "", "broadcast": "all_reduce"}.get(flow.op, flow.op)
        if not op:
            return 0.0, 0.0
        strategy, num_bytes = self.share.config.strategy, flow.payload_bytes / flow.num_messages
        rounds = strategy.inner_steps if strategy.entry.trains_locally and flow.axis == self.share.data_axis else 1
        size = 2 if op == "send_recv" and flow.op == "send" else flow.size
        between_s = self._between_s(op, num_bytes, flow.axis, flow.num_messages)
        if flow.axis == "tp" and (op != "all_reduce" or self.share.layout.stream_split == 1):
            op = "tensor" if op == "all_reduce" else "sequence"
        here_s = self.machine.link_s(op, num_bytes, size, self._world)
        return flow.num_messages * here_s / rounds, between_s / rounds

    def _between_s(self, op: str, num_bytes: float, axis: str, num_messages: int = 1) -> float:
        """Return the seconds of messages between nodes. Of zero2's units, two are on their way at a time."""
        if self.network is None:
            return 0.0
        in_flight = 2 if self._splits == _ZERO2 and axis == self.share.shard_axis else 1
        return self.network.seconds(op, num_bytes, axis, self.share, num_messages, in_flight)

    def _all_reduce_s(self, num_bytes: float) -> float:
        return self.machine.link_s("all_reduce", num_bytes, self._world, self._world) if self._world > 1 else 0.0
