"""The training loop, in FROG order: Forward, Reduce, Optimize, Gradient-zero. Read `train` from top to bottom."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from frog.checkpoint import Saver
from frog.config import RunConfig
from frog.core.errors import NonFiniteError
from frog.core.seeds import derive_seed
from frog.core.units import format_bytes, format_count
from frog.data import Loader, Windows, load_tokenizer
from frog.model import TinyTransformer
from frog.parallel import FlatParameters
from frog.train.evaluate import Score, evaluate
from frog.train.hardware import peak_flops, peak_memory_bytes
from frog.train.optimizer import build_optimizer, learning_rate
from frog.train.order import OrderProof
from frog.train.sample import sample_text
from frog.train.setup import Run, start_event, write_run_json
from frog.train.start import initial_weights
from frog.train.state import TrainState, generators, weights_sha256

_NUM_TAIL = 3
"""Scalars that ride along with the gradient: loss, norm of the local gradient, the wish to stop."""


def train(run: Run) -> dict[str, Any]:
    """Take the steps that the configuration asks for; return the run's record, the same on every rank."""
    config, world, events, log = run.config, run.world, run.events, run.log
    length, num_steps, device = config.data.sequence_length, config.train.steps, world.device

    # The data: what the model learns from, and what it is scored on.
    train_windows = Windows(run.data.split("train"), length)
    heldout_windows = Windows(run.data.split("heldout"), length)
    tokenizer = load_tokenizer(run.data.tokenizer_json)

    # The model. Every rank draws the same weights, because every rank starts from the same seed.
    torch.manual_seed(derive_seed(config.seed, "init"))
    raw_model = TinyTransformer(config.model, config.train.activation_checkpointing).to(device)
    initial_weights(raw_model, config.source.init_from)
    flat = FlatParameters(raw_model, num_tail=_NUM_TAIL)
    optimizer = build_optimizer(flat, config.optimizer)
    scaler = torch.amp.GradScaler(device.type, enabled=config.train.precision == "fp16")
    model: nn.Module = torch.compile(raw_model) if config.train.compile else raw_model  # type: ignore[assignment]
    torch.manual_seed(derive_seed(config.seed, "rank", world.rank))

    # Where the run stands: at the start, or at the last good checkpoint.
    state = TrainState(raw_model, flat, optimizer, scaler)
    order = OrderProof()
    if run.resume_from is not None:
        order = OrderProof(state.load(run.resume_from, world.rank))
    started_at, start_time = state.step, time.monotonic()
    if world.is_main:
        tokens = {"train_tokens": run.data.split("train").num_tokens}
        tokens["heldout_tokens"] = run.data.split("heldout").num_tokens
        write_run_json(run, sum(p.numel() for p in raw_model.parameters()), started_at, tokens)
    events.emit("start", **start_event(run, started_at))
    log.say(_headline(run, raw_model, started_at))

    def save() -> None:
        with events.span("checkpoint"):
            held_ns = saver.save(state.step, state.scalars(order.link(world)), generators())
        events.emit("checkpoint", step=state.step, payload_bytes=saver.payload_bytes, held_ns=held_ns)

    def score() -> Score:
        with events.span("evaluate"):
            result = evaluate(
                model,
                heldout_windows,
                run.data.token_bytes,
                world,
                _autocast(config, device),
                max_tokens=config.eval.tokens,
                batch_size=config.micro_batch_size(world.size),
            )
            if world.is_main:
                events.emit("eval", step=state.step, **vars(result))
                log.say(
                    f"step {state.step}: held-out loss {result.loss:.4f}, perplexity {result.perplexity:.1f}, "
                    f"{result.bits_per_byte:.3f} bits per byte"
                )
                if config.eval.sample_tokens:
                    seed = derive_seed(config.seed, "sample", state.step)
                    prompt = config.eval.prompt
                    text = sample_text(raw_model, tokenizer, prompt, config.eval.sample_tokens, seed=seed)
                    events.emit("sample", step=state.step, prompt=prompt, text=text)
        return result

    saver = Saver(
        run.folder,
        world.rank,
        world.size,
        state.tensors,
        generators(),
        attempt=run.attempt,
        keep_last=config.checkpoint.keep_last,
        timeout_s=config.train.timeout_s,
        on_commit=_commit_sayer(run),
    )
    loader = Loader(
        train_windows,
        seed=config.seed,
        global_batch_size=config.train.global_batch_size,
        dp_rank=world.rank,
        dp_size=world.size,
        grad_accum=config.train.grad_accum,
        start_step=state.step,
        device=device,
    )
    step_tokens = config.train.global_batch_size * length
    peak = peak_flops(device, config.train.precision)
    flops_per_token = config.model.flops_per_token(length)
    autocast = _autocast(config, device)
    last_score = score() if state.step == 0 else None
    loss_mean, stopped = float("nan"), False
    log.start_bar(state.step, num_steps)

    try:
        while state.step < num_steps and not stopped:
            step_start = time.monotonic_ns()
            step = events.step = state.step + 1

            # ---- one step --------------------------------------------------------------------------------------------
            # The next batch. A thread has made it ready while the last step ran.
            with events.span("data"):
                batch = next(loader)
                order.took(step, batch.ids_N)

            # F: forward and backward, a micro-batch at a time. Gradients add up in the flat buffer.
            loss = torch.zeros((), device=device)
            for micro in range(config.train.grad_accum):
                with events.span("forward", micro), autocast:
                    micro_loss = model(batch.tokens_ABT[micro], batch.labels_ABT[micro]) / config.train.grad_accum
                with events.span("backward", micro):
                    scaler.scale(micro_loss).backward()
                loss += micro_loss.detach()

            # R: reduce. One all-reduce averages the gradient, and with it the numbers that all ranks must agree on.
            with events.span("reduce"):
                local, mean = flat.reduce(world, (loss, flat.norm() / scaler.get_scale(), float(run.stop.wanted)))
                loss_mean, stopped = mean[0], mean[2] > 0

            # O: optimize. Every rank holds the same gradient now, so every rank takes the same decision.
            with events.span("optimize"):
                scaler.unscale_(optimizer)
                grad_norm = flat.norm().item()
                skipped = _must_skip(run, step, local, mean, grad_norm, scaler, batch.ids_N.tolist())
                if config.optimizer.grad_clip != "off" and not skipped:
                    flat.clip(grad_norm, config.optimizer.grad_clip)
                rate = learning_rate(step, num_steps, config.optimizer)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                loss_scale = scaler.get_scale() if scaler.is_enabled() else None
                scaler.step(optimizer)
                scaler.update()

            # G: gradient zero, ready for the next step.
            with events.span("zero"):
                flat.zero()
            # ----------------------------------------------------------------------------------------------------------

            state.step, state.tokens = step, state.tokens + step_tokens
            end_ns = time.monotonic_ns()
            tokens_per_s = step_tokens / ((end_ns - step_start) / 1e9)
            events.emit(
                "step",
                step=step,
                loss=local[0],
                loss_mean=loss_mean,
                grad_norm_local=local[1],
                grad_norm=grad_norm,
                learning_rate=rate,
                tokens=state.tokens,
                tokens_per_s=tokens_per_s,
                mfu=flops_per_token * tokens_per_s / (peak * world.size) if peak else None,
                memory_bytes=peak_memory_bytes(device),
                loss_scale=loss_scale,
                skipped=skipped,
                sample_ids=batch.ids_N.tolist(),
                end_ns=end_ns,
            )
            log.advance(step, f"loss {loss_mean:.3f}, {format_count(tokens_per_s)} tokens/s")
            if step % config.train.log_every == 0 or step == num_steps:
                log.note(f"step {step} | {_step_line(local, mean, grad_norm, rate, tokens_per_s)}")

            # Once in a while: look at the held-out text, keep a checkpoint.
            saver.check()
            if step % config.eval.every == 0 or step == num_steps:
                last_score = score()
            if step % config.checkpoint.every == 0 or step == num_steps or stopped:
                save()
        saver.wait()
        world.barrier()  # nobody leaves before the last checkpoint is whole
    finally:
        loader.close()
        saver.abandon(grace_s=10)

    wall_s = time.monotonic() - start_time
    return {
        "status": "completed" if state.step >= num_steps else "interrupted",
        "step": state.step,
        "loss": loss_mean if state.step > started_at else None,
        "eval": vars(last_score) if last_score else None,
        "weights_sha256": weights_sha256(raw_model),
        "order_sha256": order.link(world),
        "tokens": state.tokens,
        "wall_s": wall_s,
        "tokens_per_s": (state.step - started_at) * step_tokens / wall_s,
    }


def _autocast(config: RunConfig, device: torch.device) -> AbstractContextManager[Any]:
    if config.train.precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if config.train.precision == "bf16" else torch.float16)


def _must_skip(
    run: Run,
    step: int,
    local: list[float],
    mean: list[float],
    grad_norm: float,
    scaler: torch.amp.GradScaler,
    sample_ids: list[int],
) -> bool:
    """Whether fp16 overflowed and this step must be left out. All ranks see the same means, so all say the same.

    Raises:  NonFiniteError, on every rank, naming the ranks and samples, if the loss or the gradient is not finite.
    """
    loss, _, _ = mean
    finite = torch.tensor([loss, grad_norm]).isfinite()
    if finite.all():
        return False
    if scaler.is_enabled() and finite[0] and scaler.get_scale() > 1.0:
        run.log.note(f"step {step} | gradient overflow at loss scale {scaler.get_scale():g}: step left out")
        return True
    rows = run.world.gather_rows(torch.tensor([*local[:2], *map(float, sample_ids)], dtype=torch.float64))
    culprits = [
        f"  rank {rank}: loss {row[0]:g}, gradient norm {row[1]:g}, samples {[int(x) for x in row[2:]]}"
        for rank, row in enumerate(rows.tolist())
        if not torch.tensor(row[:2]).isfinite().all()
    ]
    raise NonFiniteError(
        f"step {step}: the loss or the gradient is not finite (mean loss {loss:g}, gradient norm {grad_norm:g}); "
        "no weight was changed\n" + "\n".join(culprits or ["  the sum overflowed; each rank's own values are finite"]),
        "lower the learning rate or look at those samples (`frog data inspect`); the last checkpoint is from before",
    )


def _commit_sayer(run: Run) -> Any:
    def say(step: int, payload_bytes: int, write_ns: int) -> None:
        run.events.emit("commit", step=step, payload_bytes=payload_bytes, write_ns=write_ns)
        run.log.say(f"step {step}: checkpoint {run.folder.checkpoint(step)} ({format_bytes(payload_bytes)})")

    return say


def _headline(run: Run, model: TinyTransformer, started_at: int) -> str:
    config, world = run.config, run.world
    parameters = format_count(sum(p.numel() for p in model.parameters()))
    where = f"{world.size} rank{'s' if world.size > 1 else ''} on {world.device.type}"
    since = f", resumed at step {started_at}" if started_at else ""
    return (
        f"{run.folder.path}: {parameters} parameters, {where}, {config.train.steps} steps of "
        f"{config.train.global_batch_size} x {config.data.sequence_length} tokens of {run.data.name}{since}"
    )


def _step_line(local: list[float], mean: list[float], grad_norm: float, rate: float, tokens_per_s: float) -> str:
    return (
        f"loss {local[0]:.4f} (mean of ranks {mean[0]:.4f}) | gradient norm {local[1]:.4f} (reduced {grad_norm:.4f}) | "
        f"learning rate {rate:.2e} | {format_count(tokens_per_s)} tokens/s"
    )
