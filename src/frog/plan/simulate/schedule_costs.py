"""The seconds and bytes of a step's parts, from the planner's model of time, for a pipeline schedule."""

from __future__ import annotations

from dataclasses import dataclass

from frog.core.errors import ConfigError
from frog.core.runs.vocabulary import Phase
from frog.plan.estimate.layer_time import Passes, Times
from frog.plan.estimate.step_time import OPTIMIZER_BYTES, StepModel
from frog.plan.layout import Layout
from frog.train.parallel.schedules.schedule import Action, Kind, Schedule, make_schedule


def schedule_of(layout: Layout) -> Schedule:
    """Return the pipeline schedule; a single stage takes a micro-batch forward and backward before the next.

    Raises:  ConfigError if Frog has no such schedule, as with fewer micro-batches than stages.
    """
    if layout.virtual_stages > 1 and layout.pp > 1 and layout.schedule != "1f1b":
        raise ConfigError(
            f"{layout.schedule} has no virtual stages", "use --schedule interleaved, or --virtual-stages 1"
        )
    name = "interleaved" if layout.virtual_stages > 1 else layout.schedule
    if layout.pp == 1:
        name = "1f1b"
    return make_schedule(name, layout.pp, layout.num_micro, layout.virtual_stages if name == "interleaved" else 1)


def phase_of(action: Action) -> Phase:
    return "forward" if action.kind == "F" else "backward"


def next_stage(schedule: Schedule, action: Action) -> int | None:
    """Return the stage that needs a pass's result; None if no other does."""
    stage = {"F": action.stage + 1, "B": action.stage - 1}.get(action.kind, -1)
    return stage if 0 <= stage < schedule.num_stages else None


@dataclass(frozen=True)
class Work:
    """Seconds of one pass through a stage: computation, and exposed exchanges inside a cell."""

    compute: float
    exchange: float


class Costs:
    """Seconds without disturbances. All layers of a rank are taken as equal, and all stages but the last."""

    def __init__(self, step: StepModel, schedule: Schedule) -> None:
        layout, chunks = step.layout, schedule.virtual_stages
        self._last_micro = schedule.num_micro - 1
        self._gradient_kind: Kind = "W" if schedule.splits_backward else "B"
        self.work = _work(step, schedule)
        """By whether it is the last stage, and the kind of pass."""
        self.num_layers = max(1, layout.heaviest_layers(step.model.layers) // chunks)
        """Layers of one stage."""
        self.message_bytes = 2 * layout.tokens * step.model.hidden // layout.tp
        self.near_message = step.links.send_inside(self.message_bytes)
        self.far_message = step.links.send_outside(self.message_bytes, step.route)
        """Seconds of a message between stages, inside an NVLink domain and between two."""
        self.overlaps_messages = layout.traits.overlaps_stages and chunks > 1
        self.exchange_bytes = 2 * layout.tokens * step.model.hidden
        self.optimizer = step.kernels.moves(OPTIMIZER_BYTES * sum(step.optimizer_parameters))
        self.shares_data = layout.data > 1
        """True if there is data-parallel communication."""
        self.gathers_layers = self.shares_data and step.gathers_layers
        self.num_sharing = _cells_of_a_shard(layout)
        """Data-parallel replicas that gather parameters together."""
        self.layer_bytes = int(layout.traits.gradient_bytes * step.stage_parameters / (chunks * self.num_layers))
        self.gathered_layer_bytes = int(layout.gathered_bytes * step.stage_parameters / (chunks * self.num_layers))
        """Bytes of a layer's gradients, and of its parameters."""
        self.parameter_bytes = int(layout.gathered_bytes * step.stage_parameters)
        self.gather, self.reduce, self.replicas, self.slowed = 0.0, 0.0, 0.0, 0.0
        """Seconds of a layer: to gather it, to reduce its gradients among the ranks that share it, with hybrid sharding
        then among its replicas; and seconds by which collectives slow the last backward pass of a stage down."""
        self.parameters = 0.0
        """Seconds to gather the updated parameters, as far as the next forward pass does not hide them."""
        if self.gathers_layers:
            self.gather, self.reduce, self.replicas = step.layer_transfers
            self._slow_all_passes(step.data[1] / (layout.num_micro * step.stages[0].total.total))
        elif self.shares_data:
            reduce, parameters = step.step_transfers
            self.reduce = reduce / (chunks * self.num_layers)
            forward = step.stages[0].total.total / 3
            hides = layout.traits.overlaps_parameters
            self.parameters = parameters - hides * step.hidden_transfer(parameters, forward)
            self.slowed = step.data[1] / chunks

    def _slow_all_passes(self, fraction: float) -> None:
        self.work = {
            key: Work(work.compute + fraction * (work.compute + work.exchange), work.exchange)
            for key, work in self.work.items()
        }

    def makes_gradients(self, action: Action) -> bool:
        """True if a pass computes gradients of weights."""
        return action.kind == self._gradient_kind

    def finishes_gradients(self, action: Action) -> bool:
        """True if the gradients of a stage are complete after a pass."""
        return self.makes_gradients(action) and action.micro == self._last_micro


def _cells_of_a_shard(layout: Layout) -> int:
    cells = max(1, layout.shard // layout.cp)
    return cells if layout.dp % cells == 0 else layout.dp


def _work(step: StepModel, schedule: Schedule) -> dict[tuple[bool, Kind], Work]:
    """Divide the passes of a micro-batch among stages: the last rank has the heaviest, the others the rest."""
    heaviest, mean = step.stages
    num_ranks, chunks = len(schedule.ranks), schedule.virtual_stages
    others = heaviest if num_ranks == 1 else (mean * num_ranks + heaviest * -1) * (1 / (num_ranks - 1))
    usual = others * (1 / chunks)
    last = heaviest + usual * (1 - chunks)
    half = 0.5 if schedule.splits_backward else 1.0
    return {
        (is_last, kind): _of_times(times)
        for is_last, passes in ((False, usual), (True, last))
        for kind, times in _by_kind(passes, half).items()
    }


def _by_kind(passes: Passes, half: float) -> dict[Kind, Times]:
    return {"F": passes.forward, "B": passes.backward * half + passes.recomputed, "W": passes.backward * half}


def _of_times(times: Times) -> Work:
    exchange = times.tensor + times.context + times.expert
    return Work(times.total - exchange, exchange)
