"""What the loop works with, made from a run's configuration; and what it does once in a while."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from frog.checkpoint import Saver
from frog.core.seeds import derive_seed
from frog.core.units import format_bytes
from frog.parallel.build import build_strategy
from frog.parallel.strategy import Strategy
from frog.train.hardware import autocast
from frog.train.inject import arm_faults
from frog.train.optimizer import build_optimizer
from frog.train.order import OrderProof
from frog.train.runfile import start_event, write_run_json
from frog.train.setup import Run
from frog.train.state import TrainState
from frog.train.workload import Batches, Workload


@dataclass
class Parts:
    """The loop's tools."""

    strategy: Strategy
    scaler: torch.amp.GradScaler
    state: TrainState
    order: OrderProof
    saver: Saver
    batches: Batches


def build_parts(run: Run, workload: Workload) -> Parts:
    """Spread the model, load the checkpoint that is resumed, write run.json and the start event. A collective call."""
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
    order_link = state.load(run.resume_from, world.rank) if run.resume_from is not None else ""
    if world.is_main:
        write_run_json(run, workload, state.step)
    run.events.emit("start", **start_event(run, state.step))
    saver = _saver(run, state)
    arm_faults(run, strategy, saver)
    return Parts(strategy, scaler, state, OrderProof(order_link), saver, workload.batches(state.step))


def save(run: Run, parts: Parts) -> None:
    """Begin a checkpoint; training is blocked for one copy of the state."""
    step = parts.state.step
    with run.events.span("checkpoint"):
        scalars = parts.state.scalars(parts.order.link(run.world, run.mesh.readers))
        blocked_ns = parts.saver.save(step, scalars, parts.state.own(), parts.state.shards())
    run.events.emit("checkpoint", step=step, payload_bytes=parts.saver.payload_bytes, blocked_ns=blocked_ns)


def score(run: Run, parts: Parts, workload: Workload) -> dict[str, Any]:
    """Score what was held out over all ranks; return what the record says of it."""
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
