"""What the loop works with, made from a run's configuration; and what it does once in a while."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from frog.checkpoint import Saver
from frog.core.seeds import derive_seed
from frog.core.units import format_bytes
from frog.data import Loader, Windows, load_tokenizer
from frog.model import TinyTransformer
from frog.parallel.build import build_strategy
from frog.parallel.strategy import Strategy
from frog.train.evaluate import Score, evaluate
from frog.train.hardware import autocast
from frog.train.inject import arm_faults
from frog.train.optimizer import build_optimizer
from frog.train.order import OrderProof
from frog.train.sample import sample_text
from frog.train.setup import Run, start_event, write_run_json
from frog.train.state import TrainState, generators, take_whole
from frog.train.trained import initial_weights


@dataclass
class Parts:
    """The loop's tools."""

    strategy: Strategy
    num_parameters: int
    """Of the whole model."""
    scaler: torch.amp.GradScaler
    state: TrainState
    order: OrderProof
    saver: Saver
    loader: Loader
    heldout: Windows
    tokenizer: Tokenizer


def build_parts(run: Run) -> Parts:
    """Make everything, load the checkpoint that is resumed, and write run.json and the start event."""
    config, world = run.config, run.world
    # Rank 0's weights count; the same seed everywhere makes the others' the same before they are sent.
    torch.manual_seed(derive_seed(config.seed, "init"))
    model = TinyTransformer(config.model, config.train.activation_checkpointing).to(world.device)
    initial_weights(model, config.source.init_from)
    num_parameters = sum(p.numel() for p in model.parameters())
    make_optimizer = functools.partial(build_optimizer, config.optimizer)
    strategy = build_strategy(config, run.mesh, model, make_optimizer, autocast(config.train.precision, world.device))
    scaler = torch.amp.GradScaler(
        world.device.type, config.train.initial_loss_scale, enabled=config.train.precision == "fp16"
    )
    torch.manual_seed(derive_seed(config.seed, "rank", world.rank))

    state = TrainState(strategy, scaler)
    order_link = state.load(run.resume_from, world.rank) if run.resume_from is not None else ""
    if world.is_main:
        write_run_json(run, num_parameters, state.step)
    run.events.emit("start", **start_event(world, run.mesh, state.step, run.passed_over))
    saver = _saver(run, state)
    arm_faults(run, strategy, saver)
    return Parts(
        strategy=strategy,
        num_parameters=num_parameters,
        scaler=scaler,
        state=state,
        order=OrderProof(order_link),
        saver=saver,
        loader=_loader(run, state.step),
        heldout=Windows(run.data.split("heldout"), config.data.sequence_length),
        tokenizer=load_tokenizer(run.data.tokenizer_json),
    )


def save(run: Run, parts: Parts) -> None:
    """Begin a checkpoint; training is held up for one copy of the state."""
    step = parts.state.step
    with run.events.span("checkpoint"):
        scalars = parts.state.scalars(parts.order.link(run.world, run.mesh.readers))
        blocked_ns = parts.saver.save(step, scalars, generators(), parts.state.shards())
    run.events.emit("checkpoint", step=step, payload_bytes=parts.saver.payload_bytes, blocked_ns=blocked_ns)


def score(run: Run, parts: Parts) -> Score:
    """Score the held-out text over all ranks, and let rank 0 write a little text."""
    config, step = run.config, parts.state.step
    with run.events.span("evaluate"):
        result = evaluate(
            parts.strategy,
            parts.heldout,
            run.data.token_bytes,
            max_tokens=config.eval.tokens,
            batch_size=config.micro_batch_size(run.mesh.dp.size),
        )
        if run.world.is_main:
            run.events.emit("eval", step=step, **vars(result))
            run.log.say(
                f"step {step}: held-out loss {result.loss:.4f}, perplexity {result.perplexity:.1f}, "
                f"{result.bits_per_byte:.3f} bits per byte"
            )
        if config.eval.sample_tokens:
            _sample(run, parts)
    return result


def _sample(run: Run, parts: Parts) -> None:
    """Rank 0 puts the whole model together and writes a little text."""
    config, step = run.config, parts.state.step
    model = TinyTransformer(config.model) if run.world.is_main else None
    take_whole(parts.strategy, model)
    if model is not None:
        prompt, seed = config.eval.prompt, derive_seed(config.seed, "sample", step)
        text = sample_text(model.eval(), parts.tokenizer, prompt, config.eval.sample_tokens, seed=seed)
        run.events.emit("sample", step=step, prompt=prompt, text=text)


def _saver(run: Run, state: TrainState) -> Saver:
    def committed(step: int, payload_bytes: int, write_ns: int) -> None:
        run.events.emit("commit", step=step, payload_bytes=payload_bytes, write_ns=write_ns)
        run.log.say(f"step {step}: checkpoint {run.folder.checkpoint(step)} ({format_bytes(payload_bytes)})")

    return Saver(
        run.folder,
        run.world.rank,
        run.world.size,
        state.shards(),
        generators(),
        attempt=run.attempt,
        keep_last=run.config.checkpoint.keep_last,
        timeout_s=run.config.train.timeout_s,
        on_commit=committed,
    )


def _loader(run: Run, start_step: int) -> Loader:
    config = run.config
    return Loader(
        Windows(run.data.split("train"), config.data.sequence_length),
        seed=config.seed,
        global_batch_size=config.train.global_batch_size,
        dp_rank=run.mesh.dp.rank,
        dp_size=run.mesh.dp.size,
        grad_accum=config.train.grad_accum,
        start_step=start_step,
        device=run.world.device,
    )
