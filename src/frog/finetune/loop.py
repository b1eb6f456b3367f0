"""The fine-tuning loop: the steps of `train/loop.py`, on labelled rows and with almost everything frozen."""

from __future__ import annotations

import copy
import functools
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from frog.comm import World
from frog.config import RunConfig
from frog.config.finetune import FinetuneConfig
from frog.core.errors import NonFiniteError
from frog.core.facts import ErrorFacts
from frog.core.runfolder import RunFolder
from frog.core.seeds import derive_seed
from frog.core.units import format_count
from frog.data import Batch
from frog.data.labelled import LabelledSet
from frog.data.labelled_batches import LabelledBatches
from frog.events import EventWriter
from frog.finetune.confusion import confusion_lines
from frog.finetune.score import FinetuneScore, HeldOut
from frog.finetune.task import Task, adapt
from frog.model import TinyTransformer
from frog.model.adapter import save_adapter
from frog.model.lora import trained_parameters
from frog.parallel.build import build_strategy
from frog.parallel.mesh import Mesh
from frog.parallel.strategy import Agreement, Strategy
from frog.train.hardware import autocast, peak_memory_bytes
from frog.train.log import RankLog
from frog.train.optimizer import build_optimizer, learning_rate
from frog.train.order import OrderProof
from frog.train.state import take_whole, weights_sha256
from frog.train.stop import StopRequest


@dataclass
class FinetuneRun:
    """All that the loop needs and did not make."""

    config: RunConfig
    finetune: FinetuneConfig
    world: World
    mesh: Mesh
    folder: RunFolder
    base: TinyTransformer
    data: LabelledSet
    task: Task
    events: EventWriter
    log: RankLog
    stop: StopRequest

    @property
    def adapter(self) -> Path:
        return self.folder.path / "adapter"


@dataclass
class Parts:
    """The loop's tools."""

    strategy: Strategy
    batches: LabelledBatches
    heldout: HeldOut
    whole: TinyTransformer
    """A model of this rank's own, for held-out texts and for saving: the strategy may hold parts of its own only."""
    num_trained: int
    num_cut: int
    """Tokens of the training part that did not fit into rows."""


def build_parts(run: FinetuneRun) -> Parts:
    """Put adapters beside the base and spread the model over the mesh. A collective call."""
    config, mesh = run.config, run.mesh
    torch.manual_seed(derive_seed(config.seed, "adapters"))
    run.base.activation_checkpointing = config.train.activation_checkpointing
    model = adapt(run.base, run.finetune.head, len(run.finetune.labels), run.finetune.lora).to(run.world.device)
    whole = copy.deepcopy(model).eval()
    num_trained = sum(parameter.numel() for parameter in trained_parameters(model).values())
    make_optimizer = functools.partial(build_optimizer, config.optimizer)
    strategy = build_strategy(config, mesh, model, make_optimizer, autocast(config.train.precision, run.world.device))
    rows = [run.task.row(example) for example in run.data.train]
    batches = LabelledBatches(
        rows,
        seed=config.seed,
        global_batch_size=config.train.global_batch_size,
        max_length=config.data.sequence_length,
        dp_rank=mesh.dp.rank,
        dp_size=mesh.dp.size,
        grad_accum=config.train.grad_accum,
        device=run.world.device,
    )
    return Parts(strategy, batches, HeldOut(run.task, run.data), whole, num_trained, sum(row.num_cut for row in rows))


def finetune(run: FinetuneRun) -> dict[str, Any]:
    """Train for as many epochs as were asked for, save the adapter; return the run's record, the same on every rank."""
    config, events, log = run.config, run.events, run.log
    parts = build_parts(run)
    strategy, num_steps = parts.strategy, config.train.steps
    scaler = torch.amp.GradScaler(run.world.device.type, enabled=False)
    order, tokens, step, loss_mean, stopped = OrderProof(), 0, 0, None, False
    start_time = time.monotonic()
    _say_headline(run, parts)
    last_score = _score(run, parts, step)
    log.say(f"before: {last_score.summary}")
    log.start_bar(0, num_steps)

    for epoch in range(run.finetune.epochs):
        batches = parts.batches.epoch(epoch)
        while not stopped:
            start_ns = time.monotonic_ns()
            events.step = step + 1

            # ---- one step --------------------------------------------------------------------------------------------
            with events.span("data"):
                batch = next(batches, None)
            if batch is None:
                break
            step = batch.step
            order.took(step, batch.ids_N)

            # Forward and backward. Gradients exist for the adapters (and a new head) alone.
            loss = strategy.forward_backward(batch, scaler.scale, events.span)

            # Reduce. Micro-batches count by their labels, so this is the mean over the labels of the whole batch.
            with events.span("reduce"):
                agreed = strategy.reduce(loss, run.stop.wanted)
                stopped, loss_mean = agreed.stop, agreed.loss_mean

            # Optimize.
            with events.span("optimize"):
                grad_norm = strategy.norm()
                _check_finite(step, agreed, grad_norm)
                if config.optimizer.grad_clip != "off":
                    strategy.clip(grad_norm, config.optimizer.grad_clip)
                rate = learning_rate(step, num_steps, config.optimizer)
                for group in strategy.optimizer.param_groups:
                    group["lr"] = rate
                strategy.step(scaler)

            # Gradient zero.
            with events.span("zero"):
                strategy.zero()
            # ----------------------------------------------------------------------------------------------------------

            step_tokens = batch.tokens_ABT.numel() * run.mesh.dp.size  # padding too: it is computed on like the rest
            tokens += step_tokens
            _emit_step(run, batch, agreed, grad_norm, rate, tokens, step_tokens, start_ns)
            log.advance(step, f"loss {agreed.loss_mean:.3f}")
            if step % config.train.log_every == 0 or step == num_steps:
                log.note(
                    f"step {step} | loss {agreed.loss:.4f} (mean of ranks {agreed.loss_mean:.4f}) | "
                    f"gradient norm {grad_norm:.4f} | learning rate {rate:.2e}"
                )
        if stopped:
            break
        last_score = _score(run, parts, step)
        log.say(f"epoch {epoch + 1} of {run.finetune.epochs}: loss {loss_mean:.3f}, {last_score.summary}")

    take_whole(strategy, parts.whole)
    if run.world.is_main:
        save_adapter(parts.whole, run.finetune.lora, run.adapter, base=run.finetune.base, labels=run.finetune.labels)
        log.say(f"step {step}: adapter {run.adapter} ({format_count(parts.num_trained)} parameters)")
    run.world.barrier()  # nobody leaves before the adapter is whole
    wall_s = time.monotonic() - start_time
    for line in confusion_lines(last_score.confusion) if last_score.confusion and not stopped else []:
        log.say(line)
    return {
        "status": "interrupted" if stopped and step < num_steps else "completed",
        "step": step,
        "loss": loss_mean,
        "eval": {name: getattr(last_score, name) for name in ("loss", "perplexity", "bits_per_byte", "tokens")},
        "token_accuracy": last_score.token_accuracy,
        "classification": last_score.confusion.as_dict() if last_score.confusion else None,
        "num_trained_parameters": parts.num_trained,
        "weights_sha256": weights_sha256(parts.whole.named_parameters()),
        "order_sha256": order.link(run.world, run.mesh.readers),
        "tokens": tokens,
        "wall_s": wall_s,
        "tokens_per_s": tokens / wall_s,
    }


def _score(run: FinetuneRun, parts: Parts, step: int) -> FinetuneScore:
    with run.events.span("evaluate"):
        take_whole(parts.strategy, parts.whole)
        result = parts.heldout.score(parts.whole, run.world)
    if run.world.is_main:
        fields = {name: getattr(result, name) for name in ("loss", "perplexity", "bits_per_byte", "tokens")}
        run.events.emit("eval", step=step, **fields)
    return result


def _check_finite(step: int, agreed: Agreement, grad_norm: float) -> None:
    if not (math.isfinite(agreed.loss_mean) and math.isfinite(grad_norm)):
        raise NonFiniteError(
            f"step {step}: the loss or the gradient is not finite (mean loss {agreed.loss_mean:g}, gradient norm "
            f"{grad_norm:g}); no weight was changed",
            "lower --learning-rate",
            ErrorFacts(cause="not_finite"),
        )


def _emit_step(
    run: FinetuneRun,
    batch: Batch,
    agreed: Agreement,
    grad_norm: float,
    rate: float,
    tokens: int,
    step_tokens: int,
    start_ns: int,
) -> None:
    end_ns = time.monotonic_ns()
    run.events.emit(
        "step",
        step=batch.step,
        loss=agreed.loss,
        loss_mean=agreed.loss_mean,
        grad_norm_local=agreed.grad_norm_local,
        grad_norm=grad_norm,
        learning_rate=rate,
        tokens=tokens,
        tokens_per_s=step_tokens / ((end_ns - start_ns) / 1e9),
        mfu=None,
        memory_bytes=peak_memory_bytes(run.world.device),
        loss_scale=None,
        skipped=False,
        sample_ids=batch.ids_N.tolist(),
        end_ns=end_ns,
    )


def _say_headline(run: FinetuneRun, parts: Parts) -> None:
    total = sum(parameter.numel() for parameter in parts.whole.parameters())
    where = f"{run.world.size} rank{'s' if run.world.size > 1 else ''} on {run.world.device.type}"
    run.log.say(
        f"{run.folder.path}: {format_count(parts.num_trained)} of {format_count(total)} parameters are trained "
        f"({parts.num_trained / total:.1%}), {where}; {len(run.data.train)} texts of {run.data.name} to train on, "
        f"{len(run.data.heldout)} held out; {run.config.train.steps} steps of {run.config.train.global_batch_size}"
    )
    if parts.num_cut:
        run.log.say(f"texts longer than {run.config.data.sequence_length} tokens were cut: {parts.num_cut} tokens lost")
