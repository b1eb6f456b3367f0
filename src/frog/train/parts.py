"""The parts that the loop works with, built from a run's configuration; evaluation and checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from frog.core.runs.observer import OBSERVERS
from frog.core.seeds import derive_seed
from frog.core.units import format_bytes
from frog.train.checkpoint import Saver
from frog.train.hardware import autocast
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.order_proof import OrderProof
from frog.train.parallel.build_strategy import build_strategy
from frog.train.parallel.strategy import Strategy
from frog.train.record import start_event, write_run_json
from frog.train.setup import Run
from frog.train.state import TrainState
from frog.train.workload import Batches, Workload


@dataclass
class Parts:
    """The objects that the training loop uses."""

    strategy: Strategy
    scaler: torch.amp.GradScaler
    state: TrainState
    order: OrderProof
    saver: Saver
    batches: Batches
    after_step: Callable[[], None] = lambda: None
    """Called at the end of each step, when the step is complete on this rank."""
    scores: dict[str, Any] = field(default_factory=lambda: {"eval": None})
    """Last scores on held-out text."""
    scored_step: int | None = None
    saved_step: int | None = None
    """Steps of the last evaluation and the last checkpoint."""
    owes_checkpoint: bool = False
    """True if the loss of a rank aborted a checkpoint."""

    def close(self, grace_s: float) -> None:
        """Stop the background threads; a checkpoint in progress has `grace_s` seconds to finish."""
        self.batches.close()
        self.saver.abandon(grace_s)


def build_parts(
    run: Run,
    workload: Workload,
    restore: Callable[[TrainState], str] | None = None,
    order: Callable[[str], OrderProof] = OrderProof,
) -> Parts:
    """Distribute the model, load the state to resume from, write run.json and the start event. A collective call.

    restore: fills the state and returns its data-order hash; default: load the checkpoint to resume from.
    order: builds the order proof from that hash.
    """
    config, world = run.config, run.world
    trained = {name for name, parameter in workload.model.named_parameters() if parameter.requires_grad}
    precision = autocast(config.train.precision, world.device)
    make_optimizer = functools.partial(build_optimizer, config.optimizer)
    strategy = build_strategy(config, run.mesh, workload.model, make_optimizer, precision)
    scaler = torch.amp.GradScaler(
        world.device.type, config.train.initial_loss_scale, enabled=config.train.precision == "fp16"
    )
    torch.manual_seed(derive_seed(config.seed, "rank", world.rank))

    state = TrainState(strategy, scaler, trained)
    order_link = ""
    if restore is not None:
        order_link = restore(state)
    elif run.resume_from is not None:
        order_link = state.load(run.resume_from, world.rank)
    if world.is_main:
        write_run_json(run, workload, state.step)
    run.events.emit("start", **start_event(run, state.step))
    saver = _saver(run, state)
    for observer in OBSERVERS:
        observer.run_built(run, strategy)
    # At the last step, score again: the run ended between its last checkpoint and its record.
    scored = state.step if 0 < state.step < config.train.steps else None
    return Parts(
        strategy, scaler, state, order(order_link), saver, workload.batches(state.step),
        scored_step=scored, saved_step=state.step,
    )  # fmt: skip


def attend(run: Run, parts: Parts, workload: Workload, stopped: bool = False) -> None:
    """Evaluate on held-out text and save a checkpoint, if due after this step and not done yet."""
    step, config = parts.state.step, run.config
    stopped = stopped or parts.owes_checkpoint
    is_last = step == config.train.steps
    if (step % config.eval.every == 0 or is_last) and parts.scored_step != step:
        parts.scores = score(run, parts, workload)
        parts.scored_step = step
    if (step % config.checkpoint.every == 0 or is_last or stopped) and parts.saved_step != step:
        save(run, parts)
        parts.saved_step, parts.owes_checkpoint = step, False


def save(run: Run, parts: Parts) -> None:
    """Start a checkpoint; training blocks only while the state is copied."""
    step = parts.state.step
    with run.events.span("checkpoint"):
        scalars = parts.state.scalars(parts.order.link(run.world, run.mesh.readers))
        blocked_ns = parts.saver.save(step, scalars, parts.state.own(), parts.state.shards())
    run.events.emit("checkpoint", step=step, payload_bytes=parts.saver.payload_bytes, blocked_ns=blocked_ns)


def score(run: Run, parts: Parts, workload: Workload) -> dict[str, Any]:
    """Score the held-out data on all ranks; return fields for the record."""
    with run.events.span("evaluate"):
        scores = workload.score(parts.strategy, parts.state)
        if run.world.is_main:
            run.events.emit("eval", step=parts.state.step, **scores["eval"])
    return scores


def _saver(run: Run, state: TrainState) -> Saver:
    def committed(step: int, payload_bytes: int, write_ns: int) -> None:
        run.events.emit("commit", step=step, payload_bytes=payload_bytes, write_ns=write_ns)
        run.log.say(f"step {step}: checkpoint {run.folder.checkpoint(step)} ({format_bytes(payload_bytes)})")

    return Saver(
        run.folder,
        run.world.rank,
        run.world.size,
        state.shards(),
        state.own(),
        attempt=run.attempt,
        keep_last=run.config.checkpoint.keep_last,
        timeout_s=run.config.train.timeout_s,
        on_commit=committed,
    )
