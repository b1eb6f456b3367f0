"""Simulate training steps: the schedule's passes, messages between stages, collectives of gradients and parameters.

Events are computed in an order in which each follows its causes, for all data-parallel replicas at once: a time is an
array with one number for each. A network carries one message after another, and one collective after another, which
messages overtake; a collective starts when its last member has come. What never happens has an infinite time, and so
has whatever waits for it.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from frog.core.runs.vocabulary import Phase
from frog.plan.estimate.step_time import StepModel
from frog.plan.simulate.disturbances import Disturbances, Floats, Places, meet
from frog.plan.simulate.schedule_costs import Costs, next_stage, phase_of, schedule_of
from frog.plan.simulate.trace import Call, Span, Trace
from frog.train.parallel.schedules.schedule import Action, in_order

_NORM_BYTES = 4


@dataclass(frozen=True)
class Simulated:
    """The result: seconds of each step, until its last rank ends, and the mean rank's time by cause."""

    step_s: list[float]
    """Infinite if the step never ends."""
    seconds: dict[str, float]
    trace: Trace | None


def simulate_steps(step: StepModel, disturbed: Disturbances, num_steps: int, *, with_trace: bool = False) -> Simulated:
    """Simulate steps of a run.

    Raises:  ConfigError if the schedule cannot be made of so many micro-batches.
    """
    return _Simulation(step, disturbed, with_trace).run(num_steps)


class _Simulation:
    def __init__(self, step: StepModel, disturbed: Disturbances, with_trace: bool) -> None:
        self.model, self.layout = step, step.layout
        self.schedule = schedule_of(self.layout)
        self.order = list(in_order(self.schedule))
        self.costs = Costs(step, self.schedule)
        self.places = Places(self.layout, step.cluster, disturbed)
        if not (disturbed.exist or with_trace):
            self.places.keep_one_replica()
        num_stages, num_replicas = self.places.network_PD.shape
        self.free: list[Floats] = [np.zeros(num_replicas) for _ in range(num_stages)]
        """When each cell has finished what it computed so far."""
        self.network: list[Floats] = [np.zeros(num_replicas) for _ in range(num_stages)]
        """When the network of each cell is free for the next collective."""
        self.outbox: list[Floats] = [np.zeros(num_replicas) for _ in range(num_stages)]
        """When it is free for the next message."""
        per_stage = self.places.ranks_PDI[0].size
        self.trace = Trace([[] for _ in range(num_stages)], per_stage) if with_trace else None
        self.seconds: dict[str, float] = defaultdict(float)
        self.number = 0

    def run(self, num_steps: int) -> Simulated:
        ends = [0.0]
        for number in range(1, num_steps + 1):
            self.number = number
            with np.errstate(invalid="ignore"):  # of infinite times
                self._step()
            ends.append(max(float(free.max()) for free in self.free))
            if self.trace is not None:
                self.trace.step_ends.append(np.stack(self.free))
            if math.isinf(ends[-1]):
                break
        mean = {cause: seconds / (len(self.free) * (len(ends) - 1)) for cause, seconds in self.seconds.items()}
        return Simulated([later - earlier for earlier, later in itertools.pairwise(ends)], mean, self.trace)

    def _step(self) -> None:
        stages = range(len(self.free))
        for stage in stages:
            self._alone(stage, "data", self.model.constants.step_s, "load")
        self.places.start_step(self.number)
        arrivals: dict[Action, Floats] = {}
        for stage, action in self.order:
            self._pass(stage, action, arrivals)
        for stage in stages:
            self._finish_reduction(stage)
        self._add_norms()
        for stage in stages:
            self._alone(stage, "optimize", self.costs.optimizer, "optimize")
            self._gather_parameters(stage)

    def _alone(self, stage: int, phase: Phase, seconds: float, cause: str) -> None:
        """Compute something without messages; a cell is as slow as its slowest rank."""
        start = self.free[stage]
        self._advance(stage, start + self.places.compute(stage, seconds).max(axis=1), cause)
        self._span(stage, phase, 0, start)

    # ---- one micro-batch on a stage ----------------------------------------------------------------------------------

    def _pass(self, stage: int, action: Action, arrivals: dict[Action, Floats]) -> None:
        start, phase = self.free[stage], phase_of(action)
        needed = self.schedule.needs(action)
        if needed in arrivals:
            self._advance(stage, np.maximum(start, arrivals.pop(needed)), "pipeline")
            self._call(stage, phase, "recv", "pp", self.costs.message_bytes, start, self.free[stage])
        self._compute(stage, action)
        self._send(stage, action, arrivals)
        self._span(stage, phase, action.micro, start)

    def _compute(self, stage: int, action: Action) -> None:
        """Compute a pass, and exchange data inside the cells, layer by layer; both are spread evenly over it."""
        begin, work = self.free[stage], self.costs.work[action.stage == self.schedule.num_stages - 1, action.kind]
        last = self.costs.finishes_gradients(action)
        own_DI = self.places.compute(stage, work.compute + (self.costs.slowed if last else 0.0))
        took = own_DI.max(axis=1)
        if work.exchange:
            took = took + work.exchange * self.places.across(stage, 1)
        if self.costs.gathers_layers:
            end = self._through_layers(stage, action, took)
        else:
            end = begin + took
            if last and self.costs.shares_data and self.layout.traits.overlaps_gradients:
                self._reduce_buckets(stage, action, took)
        waited = np.where(np.isfinite(end), end - begin - took, 0.0)
        self._count("data", waited)
        self._count("compute", own_DI.mean(axis=1))
        self._count("exchange", took - own_DI.mean(axis=1))
        self.free[stage] = end
        if own_DI.shape[1] > 1:
            come = (begin + waited)[:, None] + own_DI
            axis = "tp" if self.layout.tp > 1 else "cp"
            self._call(stage, phase_of(action), "all_reduce", axis, self.costs.exchange_bytes, come, end[:, None])

    def _send(self, stage: int, action: Action, arrivals: dict[Action, Floats]) -> None:
        """Send a pass's result to the next stage; the rank waits unless its implementation overlaps messages."""
        target = next_stage(self.schedule, action)
        if target is None or (other := self.schedule.rank_of(target)) == stage:
            return
        end = self._message(stage, self.places.between(stage, other, self.costs.near_message, self.costs.far_message))
        arrivals[action] = end
        start = self.free[stage]
        if not self.costs.overlaps_messages:
            self._advance(stage, end, "pipeline")
        self._call(
            stage, phase_of(action), "send", "pp", self.costs.message_bytes, start, end, self.free[stage] - start
        )

    def _message(self, stage: int, seconds: Floats) -> Floats:
        """Send after the messages before it, and ahead of collectives, which it delays; return when that ends."""
        ready = self.free[stage]
        self.outbox[stage] = np.maximum(ready, self.outbox[stage]) + seconds
        self.network[stage] = self.network[stage] + np.where(self.network[stage] > ready, seconds, 0.0)
        return self.outbox[stage]

    def _transfer(self, stage: int, ready: Floats, seconds: float, num_cells: int) -> Floats:
        """Run a collective of groups of cells when all are ready and their networks free; return when it ends."""
        if seconds:
            start = meet(np.maximum(ready, self.network[stage]), num_cells)
            self.network[stage] = start + seconds * self.places.across(stage, num_cells)
        return self.network[stage]

    # ---- data parallelism --------------------------------------------------------------------------------------------

    def _through_layers(self, stage: int, action: Action, took: Floats) -> Floats:
        """Pass through layers with sharded parameters: gather the next ones during each, then reduce its gradients."""
        costs, phase = self.costs, phase_of(action)
        issued = end = self.free[stage]
        gathered = self._transfer(stage, issued, costs.gather, self._num_sharing)
        for layer in reversed(range(costs.num_layers)):
            begin = np.maximum(end, gathered)
            self._call(
                stage, phase, "all_gather", self._gather_axis, costs.gathered_layer_bytes, issued, gathered, begin - end
            )
            if layer:
                issued, gathered = begin, self._transfer(stage, begin, costs.gather, self._num_sharing)
            end = begin + took / costs.num_layers
            if costs.makes_gradients(action):
                self._reduce_layer(stage, action, layer, end)
        return end

    def _reduce_buckets(self, stage: int, action: Action, took: Floats) -> None:
        """Reduce the gradients of each layer while the last backward pass computes those of the layers before it."""
        for layer in reversed(range(self.costs.num_layers)):
            ready = self.free[stage] + took * (1 - layer / self.costs.num_layers)
            self._reduce_layer(stage, action, layer, ready)

    def _reduce_layer(self, stage: int, action: Action, layer: int, ready: Floats) -> None:
        """Reduce the gradients of a layer next to the computation; for the last of a step, the rank waits."""
        costs = self.costs
        reduced = self._transfer(stage, ready, costs.reduce, self._num_sharing if costs.gathers_layers else len(ready))
        if costs.replicas:
            reduced = self._transfer(stage, reduced, costs.replicas, len(ready))
        if layer or action.stage != stage or not self.costs.finishes_gradients(action):
            self._call(
                stage, phase_of(action), self._reduction, "dp", self.costs.layer_bytes, ready, reduced, 0 * ready
            )

    @property
    def _num_sharing(self) -> int:
        """Cells that gather parameters together, of those that are simulated."""
        return min(self.costs.num_sharing, len(self.free[0]))

    @property
    def _gather_axis(self) -> str:
        """The axis of gathered parameters: with hybrid sharding they come from some of the data-parallel ranks."""
        return "shard" if self.layout.shard < self.layout.data else "dp"

    @property
    def _reduction(self) -> str:
        return "reduce_scatter" if self.layout.zero else "all_reduce"

    def _finish_reduction(self, stage: int) -> None:
        """Wait until all gradients are reduced."""
        start, costs = self.free[stage], self.costs
        if not costs.shares_data:
            return
        num_layers = 1
        if not (costs.gathers_layers or self.layout.traits.overlaps_gradients):
            num_layers = costs.num_layers * self.schedule.virtual_stages
            self._transfer(stage, start, num_layers * costs.reduce, len(start))
        self._advance(stage, np.maximum(start, self.network[stage]), "data")
        self._call(stage, "reduce", self._reduction, "dp", num_layers * costs.layer_bytes, start, self.free[stage])
        self._span(stage, "reduce", 0, start)

    def _add_norms(self) -> None:
        """Let all ranks wait for each other: the gradient's norm is a sum over all of them."""
        latest = max(float(free.max()) for free in self.free)
        for stage, start in enumerate(self.free):
            if self.layout.num_gpus > 1:
                self._advance(stage, np.full_like(start, latest), "pipeline")
                self._call(stage, "reduce", "all_reduce", "world", _NORM_BYTES, start, self.free[stage])
                self._span(stage, "reduce", 1, start)

    def _gather_parameters(self, stage: int) -> None:
        """Gather what the other ranks have updated (ZeRO 1 and 2)."""
        start = self.free[stage]
        if self.costs.parameters:
            self._advance(stage, self._transfer(stage, start, self.costs.parameters, self._num_sharing), "data")
            num_bytes = self.costs.parameter_bytes
            self._call(stage, "optimize", "all_gather", self._gather_axis, num_bytes, start, self.free[stage])
            self._span(stage, "optimize", 0, start)

    # ---- what is recorded --------------------------------------------------------------------------------------------

    def _advance(self, stage: int, end: Floats, cause: str) -> None:
        """Let a stage's cells wait or work until `end`."""
        self._count(cause, end - self.free[stage])
        self.free[stage] = end

    def _count(self, cause: str, seconds: Floats) -> None:
        self.seconds[cause] += float(seconds.mean())

    def _span(self, stage: int, phase: Phase, micro: int, start: Floats) -> None:
        if self.trace is not None:
            self.trace.add(stage, Span(self.number, phase, micro, start, self.free[stage]))

    def _call(
        self, stage: int, phase: Phase, op: str, axis: str, num_bytes: int, start: Floats, end: Floats,
        wait: Floats | None = None,
    ) -> None:  # fmt: skip
        """Record a collective or message; by default the rank waits from its start to its end."""
        if self.trace is not None:
            wait = end - start if wait is None else wait
            self.trace.add(stage, Call(self.number, phase, op, axis, num_bytes, start, end, wait))
