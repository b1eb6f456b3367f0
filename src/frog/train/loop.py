"""The training loop, in FROG order: Forward, Reduce, Optimize, Gradient-zero. Read `train` from top to bottom."""

from __future__ import annotations

import time
from typing import Any

from frog.core.units import format_count
from frog.parallel.mesh import draw
from frog.train.finite import overflowed, update_scale
from frog.train.hardware import peak_flops, peak_memory_bytes
from frog.train.memory import watch_memory
from frog.train.optimizer import learning_rate
from frog.train.parts import Parts, build_parts, save, score
from frog.train.setup import Run
from frog.train.state import weights_sha256


def train(run: Run) -> dict[str, Any]:
    """Take the steps that the configuration asks for; return the run's record, the same on every rank."""
    config, world, events, log = run.config, run.world, run.events, run.log
    parts = build_parts(run)
    strategy, scaler, state = parts.strategy, parts.scaler, parts.state
    num_steps = config.train.steps
    step_tokens = config.train.global_batch_size * config.data.sequence_length
    flops_per_token = config.model.flops_per_token(config.data.sequence_length)
    peak = peak_flops(world.device, config.train.precision)

    started_at, start_time = state.step, time.monotonic()
    log.say(_headline(run, parts))
    log.note(f"the mesh:\n{draw(run.mesh.sizes)}")
    log.say(config.explain_batch(world.size))
    events.step = state.step
    # At the last step: of a run that ended between its last checkpoint and its record.
    last_score = score(run, parts) if state.step in (0, num_steps) else None
    stopped = False
    log.start_bar(state.step, num_steps)
    try:
        while state.step < num_steps and not stopped:
            start_ns = time.monotonic_ns()
            step = events.step = state.step + 1

            # ---- one step --------------------------------------------------------------------------------------------
            # The next batch: a thread has made it ready while the last step ran.
            with events.span("data"):
                batch = next(parts.loader)
                parts.order.took(step, batch.ids_N)

            # Forward and backward, micro-batch after micro-batch: in turn, or as a pipeline's schedule has them.
            with watch_memory(strategy, events, wanted=step == started_at + 1 and not config.train.compile):
                loss = strategy.forward_backward(batch, scaler.scale, events.span)

            # Reduce. The gradient becomes the mean over the data ranks, and all ranks agree on what they must agree on.
            with events.span("reduce"):
                loss_scale = scaler.get_scale() if scaler.is_enabled() else None
                agreed = strategy.reduce(loss, run.stop.wanted)
                stopped = agreed.stop

            # Optimize. All ranks know the same norm and the same loss, so all take the same decision.
            with events.span("optimize"):
                scaler.unscale_(strategy.optimizer)
                grad_norm = strategy.norm()
                skipped = overflowed(run, step, agreed, grad_norm, loss_scale)
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
            # ----------------------------------------------------------------------------------------------------------

            local_norm = agreed.grad_norm_local
            if local_norm is not None and loss_scale:
                local_norm /= loss_scale
            state.step, state.tokens, state.loss_mean = step, state.tokens + step_tokens, agreed.loss_mean
            end_ns = time.monotonic_ns()
            tokens_per_s = step_tokens / ((end_ns - start_ns) / 1e9)
            events.emit(
                "step",
                step=step,
                loss=agreed.loss,
                loss_mean=agreed.loss_mean,
                grad_norm_local=local_norm,
                grad_norm=grad_norm,
                learning_rate=rate,
                tokens=state.tokens,
                tokens_per_s=tokens_per_s,
                mfu=flops_per_token * tokens_per_s / (peak * world.size) if peak else None,
                memory_bytes=peak_memory_bytes(world.device),
                loss_scale=loss_scale,
                skipped=skipped,
                sample_ids=batch.ids_N.tolist(),
                end_ns=end_ns,
            )
            log.advance(step, f"loss {agreed.loss_mean:.3f}, {format_count(tokens_per_s)} tokens/s")
            if step % config.train.log_every == 0 or step == num_steps:
                own = f"gradient norm {grad_norm:.4f}"
                if local_norm is not None:
                    own = f"gradient norm {local_norm:.4f} (reduced {grad_norm:.4f})"
                log.note(
                    f"step {step} | loss {agreed.loss:.4f} (mean of ranks {agreed.loss_mean:.4f}) | "
                    f"{own} | "
                    f"learning rate {rate:.2e} | {format_count(tokens_per_s)} tokens/s"
                )

            # Once in a while: look at the held-out text, keep a checkpoint.
            parts.saver.check()
            if step % config.eval.every == 0 or step == num_steps:
                last_score = score(run, parts)
            if step % config.checkpoint.every == 0 or step == num_steps or stopped:
                save(run, parts)
        parts.saver.wait_part()
        parts.saver.check()
        world.barrier()  # from here on rank 0 waits for no other: all parts of the last checkpoint are there
        parts.saver.wait()
        world.barrier()  # nobody leaves before it is whole
    finally:
        parts.loader.close()
        parts.saver.abandon(grace_s=10)

    wall_s = time.monotonic() - start_time
    return {
        "status": "completed" if state.step >= num_steps else "interrupted",
        "step": state.step,
        "loss": state.loss_mean,
        "eval": vars(last_score) if last_score else None,
        "weights_sha256": weights_sha256(strategy.whole()),
        "order_sha256": parts.order.link(world, run.mesh.readers),
        "tokens": state.tokens,
        "wall_s": wall_s,
        "tokens_per_s": (state.step - started_at) * step_tokens / wall_s,
    }


def _headline(run: Run, parts: Parts) -> str:
    config, world = run.config, run.world
    parameters = format_count(parts.num_parameters)
    where = f"{world.size} rank{'s' if world.size > 1 else ''} on {world.device.type} in {config.train.precision}"
    since = f", resumed at step {parts.state.step}" if parts.state.step else ""
    return (
        f"{run.folder.path}: {parameters} parameters, {where}, {config.train.steps} steps on {run.data.name}, "
        f"{config.data.sequence_length} tokens a sequence{since}"
    )
