"""The training loop, in FROG order: Forward, Reduce, Optimize, Gradient-zero. Read `take_steps` from top to bottom.

Training and fine-tuning share this loop. A `Workload` holds their differences: the data, the model with its loss, the
trained parameters, and the scores.
"""

from __future__ import annotations

import time
from typing import Any

from frog.train.finite import overflowed, update_scale
from frog.train.hardware import peak_flops, peak_memory_bytes
from frog.train.memory import watch_memory
from frog.train.optim.learning_rate import learning_rate
from frog.train.parallel.mesh import draw
from frog.train.parts import Parts, attend, build_parts
from frog.train.record import write_end
from frog.train.setup import Run
from frog.train.state import weights_sha256
from frog.train.step import StepReport
from frog.train.workload import Workload


def train(run: Run, workload: Workload) -> dict[str, Any]:
    """Run the configured steps; write the run's record, and return it on every rank."""
    parts = build_parts(run, workload)
    introduce(run, workload, parts)
    try:
        return take_steps(run, workload, parts)
    finally:
        parts.close(grace_s=10)


def introduce(run: Run, workload: Workload, parts: Parts) -> None:
    """Print the model, the data, and the step that training starts from."""
    headline, *details = workload.describe()
    run.log.say(headline + (f", resumed at step {parts.state.step}" if parts.state.step else ""))
    run.log.note(f"the mesh:\n{draw(run.mesh.sizes)}")
    for line in details:
        run.log.say(line)


def take_steps(run: Run, workload: Workload, parts: Parts) -> dict[str, Any]:
    """Run the remaining steps in this world."""
    config, world, events, log = run.config, run.world, run.events, run.log
    strategy, scaler, state = parts.strategy, parts.scaler, parts.state
    num_steps = config.train.steps
    peak, flops_per_token = peak_flops(world.device, config.train.precision), workload.flops_per_token
    full_tokens_per_s = peak * world.size / flops_per_token if peak and flops_per_token else None

    started_at = events.step = state.step
    attend(run, parts, workload)
    stopped = False
    log.start_bar(state.step, num_steps)
    while state.step < num_steps and not stopped:
        start_ns = time.monotonic_ns()
        step = events.step = state.step + 1

        # ---- one step --------------------------------------------------------------------------------------------
        # Get the next batch: a thread prepared it during the last step.
        with events.span("data"):
            batch = next(parts.batches)
            parts.order.add(step, batch.ids_N)

        # Forward and backward for each micro-batch: one after another, or in the order of a pipeline schedule.
        with watch_memory(strategy, events, wanted=step == started_at + 1 and not config.train.compile):
            loss = strategy.forward_backward(batch, scaler.scale, events.span)

        # Reduce. The gradient becomes the mean over the data ranks; all ranks agree on the loss and on stopping.
        # Some strategies skip this in some steps: then each rank has its own loss, and no rank stops.
        with events.span("reduce"):
            loss_scale = scaler.get_scale() if scaler.is_enabled() else None
            agreed = strategy.reduce(loss, run.stop.wanted) if strategy.reduces(step) else strategy.alone(loss)
            stopped = agreed.stop

        # Optimize. All ranks have the same norm and the same loss, so all make the same decision.
        with events.span("optimize"):
            scaler.unscale_(strategy.optimizer)
            grad_norm = strategy.norm()
            skipped = overflowed(run, batch, agreed, grad_norm, loss_scale)
            if config.optimizer.grad_clip != "off" and not skipped:
                strategy.clip(grad_norm, config.optimizer.grad_clip)
            rate = learning_rate(step, num_steps, config.optimizer)
            for group in strategy.optimizer.param_groups:
                group["lr"] = rate
            if not skipped:
                strategy.step(scaler)
            update_scale(scaler, skipped)

        # Gradient zero, ready for the next step.
        with events.span("zero"):
            strategy.zero()
            parts.after_step()
        # ----------------------------------------------------------------------------------------------------------

        step_tokens = batch.tokens_ABT.numel() * run.mesh.dp.size  # includes padding, which costs the same compute
        state.step, state.tokens, state.loss_mean = step, state.tokens + step_tokens, agreed.loss_mean
        report = StepReport(batch, agreed, grad_norm, rate, loss_scale, skipped, step_tokens, state.tokens, start_ns)
        memory_bytes = peak_memory_bytes(world.device)
        events.emit("step", **report.event(full_tokens_per_s=full_tokens_per_s, memory_bytes=memory_bytes))
        log.advance(step, report.brief)
        if step % config.train.log_every == 0 or step == num_steps:
            log.note(report.line)

        # Once in a while: evaluate on held-out text, save a checkpoint.
        parts.saver.check()
        attend(run, parts, workload, stopped)
    parts.saver.wait_part()
    parts.saver.check()
    world.barrier()  # all parts of the last checkpoint exist: rank 0 no longer waits for other ranks
    parts.saver.wait()
    record = {
        "status": "completed" if state.step >= num_steps else "interrupted",
        "step": state.step,
        "loss": state.loss_mean,
        **parts.scores,
        **workload.conclude(strategy, state),
        "weights_sha256": weights_sha256(strategy.whole()),
        "order_sha256": parts.order.link(world, run.mesh.readers),
        "tokens": state.tokens,
        "wall_s": (wall_s := state.wall_s),
        "tokens_per_s": state.tokens / wall_s,
    }
    if world.is_main:
        write_end(run.folder, record)
    world.barrier()  # no rank leaves before the checkpoint is complete and the record written
    return record
