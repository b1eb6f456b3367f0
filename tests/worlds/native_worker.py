"""A rank that tests what the proof does not: state passed between strategies, hooks, events, planted mistakes.

frog run --nproc 2 -- native_worker.py RESULTS.json
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from frog.core.config import DataConfig, OptimizerConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.env import world_env
from frog.core.processes import leave
from frog.train.comm import World, join_world
from frog.train.comm.axis import Silent
from frog.train.comm.local_shard import assemble, target_of
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.parallel.build_strategy import build_mesh, build_strategy
from frog.train.parallel.strategy import Strategy, no_span
from frog.train.parallel.torch_impl import deepspeed, native, torch_ddp, torch_pipeline
from frog.train.parallel.torch_impl import fsdp as torch_fsdp
from frog.train.prove import prove_rank as prove
from frog.train.prove.matrix import SMALL_MODEL

TIED = "embed_tokens.weight"
MAX_NORM = 0.5
"""Less than the norm of these gradients, so that they are clipped."""
prove._MAX_NORM = MAX_NORM
HAS_DEEPSPEED = find_spec("deepspeed") is not None


def case(label: str, accum: int = 2, tied: bool = True, frozen: bool = False, **strategy: Any) -> prove.Case:
    strategy.setdefault("implementation", "torch")
    config = RunConfig(
        model=replace(SMALL_MODEL, tie_word_embeddings=tied),
        data=DataConfig(sequence_length=16),
        train=TrainConfig(global_batch_size=8, grad_accum=accum),
        strategy=StrategyConfig(**strategy),
    )
    problems = config.world_problems(2)
    assert not problems, problems
    return prove.Case(label, config, frozen, uneven=False)


RELAY = [
    case("torch ddp"),
    case("torch zero1", name="zero1"),
    case("deepspeed zero3", implementation="deepspeed", name="zero3"),
    case("torch pp", pp=2),
    case("torch zero3", name="zero3"),
    case("deepspeed zero1", implementation="deepspeed", name="zero1"),
    case("torch tp", tp=2),
    case("frog zero3", implementation="frog", name="zero3"),
    case("deepspeed zero2", implementation="deepspeed", name="zero2"),
    case("torch zero2", name="zero2"),
    case("frog tp", implementation="frog", tp=2),
]
"""Each takes one step and passes its state to the next."""
RELAY = [one for one in RELAY if HAS_DEEPSPEED or one.config.strategy.implementation != "deepspeed"]


def build(case: prove.Case, world: World) -> Strategy:
    make_optimizer = partial(build_optimizer, prove.optimizer_config(case))
    mesh = build_mesh(case.config, world)
    return build_strategy(case.config, mesh, prove.make_model(case, seed=world.rank), make_optimizer)


def take_step(strategy: Strategy, case: prove.Case, step: int, span: Any = no_span) -> float:
    loss = strategy.forward_backward(prove.local_batch(case, strategy.mesh, step), lambda loss: loss, span)
    agreed = strategy.reduce(loss, stop=False)
    strategy.clip(strategy.norm(), MAX_NORM)
    strategy.step(torch.amp.GradScaler("cpu", enabled=False))
    strategy.zero()
    return agreed.loss_mean


def state(strategy: Strategy) -> dict[str, Tensor]:
    """Return unsharded weights and moments, on every rank."""
    moments = {
        f"{moment}/{name}": shape for moment in OptimizerConfig().state for name, shape in strategy.shapes.items()
    }
    shards = [*strategy.parameter_shards(), *strategy.moment_shards()]
    shapes = {**strategy.shapes, **moments}
    return {name: x.clone() for name, x in assemble(shapes, shards, strategy.mesh.world.axis)}


def put(strategy: Strategy, whole: dict[str, Tensor], count: int) -> None:
    """Load the state like a resumed run."""
    shards = [*strategy.parameter_shards(), *strategy.moment_shards()]
    with torch.no_grad():
        for shard in shards:
            shard.tensor.copy_(target_of(whole[shard.name], shard))
    for steps in strategy.step_counts():
        steps.fill_(count)
    strategy.loaded(shards)


def relay(world: World) -> dict[str, Any]:
    """Train one step with each strategy in turn."""
    whole: dict[str, Tensor] = {}
    found = prove.Trace([], [], [], [])
    exact, losses = {}, {}
    tokens, labels = prove.global_batch(RELAY[0], step=99)
    for number, one in enumerate(RELAY):
        strategy = build(one, world)
        if whole:
            put(strategy, whole, number)
            again = state(strategy)
            exact[one.name] = all(torch.equal(again[name], tensor) for name, tensor in whole.items())
        strategy.train(False)
        losses[one.name] = strategy.loss(tokens, labels).item()
        strategy.train()
        found.losses.append(take_step(strategy, one, number + 1))
        whole = state(strategy)
        found.gradients.append({})
        found.norms.append(0.0)
        found.weights.append({name: whole[name] for name in strategy.shapes})
        world.forget_axes()
    with patch.object(prove, "NUM_STEPS", len(RELAY)):
        expected = prove.one_process(RELAY[0], 1)
        expected = prove.Trace(expected.losses, [{}] * len(RELAY), expected.weights, [0.0] * len(RELAY))
        result = prove.compare(found, expected, prove.TOLERANCE["fp32"])
    model = prove.make_model(RELAY[0], seed=0)
    for number, one in enumerate(RELAY):
        right = model(tokens, labels).item()
        losses[one.name] = abs(losses[one.name] - right) / right
        model.load_state_dict({**expected.weights[number], "lm_head.weight": expected.weights[number][TIED]})
    return {**result, "exact": exact, "evaluation": losses}


def hooks(world: World) -> dict[str, Any]:
    """Train twelve steps on one batch with each communication hook, and record its events."""
    found: dict[str, Any] = {}
    for compression in ("off", "fp16", "bf16", "powersgd"):
        reported: list[Note] = []
        world.report_to(lambda op, axis, payload_bytes, reported=reported: Note(reported, op, axis, payload_bytes))
        one = case(compression, bucket_mb=0.02, compression=compression)
        strategy = build(one, world)
        assert isinstance(strategy, torch_ddp.TorchDDP)
        assert strategy.hook is not None
        losses: list[float] = []
        spans: list[Any] = []
        for _ in range(12):
            before = len(reported)
            losses.append(take_step(strategy, one, 1, partial(spanned, spans)))
        last = [note for note in reported[before:] if note.axis == "dp" and note.op == "all_reduce"]
        memory = getattr(strategy.hook.state, "error_dict", {})
        found[compression] = {
            "losses": losses,
            "bytes": [note.payload_bytes for note in last],
            "times": all(note.wait_ns >= 0 and note.end_ns >= note.start_ns for note in last),
            "gradient_bytes": sum(p.numel() * 4 for p in strategy.parameters.values()),
            "spans": spans[:4],
            "error_feedback": sum(error.abs().sum().item() for error in memory.values()),
        }
    world.report_to(Silent())
    world.forget_axes()
    return found


@contextmanager
def spanned(spans: list[Any], phase: str, micro: int = 0) -> Iterator[None]:
    spans.append([phase, micro])
    yield


class Note:
    """A recorded collective."""

    def __init__(self, reported: list[Note], op: str, axis: str, payload_bytes: int) -> None:
        self.op, self.axis, self.payload_bytes, self.wait_ns = op, axis, payload_bytes, -1
        self.start_ns, self.end_ns = time.monotonic_ns(), -1
        reported.append(self)

    def done(self, end_ns: int, wait_ns: int) -> None:
        self.end_ns, self.wait_ns = end_ns, wait_ns


def scaled(world: World) -> dict[str, bool]:
    """Check that a scaled loss, unscaled before the step, gives the same weights, as in fp16 training."""
    found = {}
    for one in [one for one in RELAY if one.config.strategy.implementation == "torch"]:
        weights = []
        for factor in (1.0, 1024.0):
            strategy = build(one, world)
            scaler = torch.amp.GradScaler("cpu", init_scale=factor)
            strategy.reduce(strategy.forward_backward(prove.local_batch(one, strategy.mesh, 1), scaler.scale), False)
            scaler.unscale_(strategy.optimizer)
            strategy.clip(strategy.norm(), MAX_NORM)
            strategy.step(scaler)
            weights.append(state(strategy))
            world.forget_axes()
        found[one.name] = all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in pairs(*weights))
    return found


def pairs(a: dict[str, Tensor], b: dict[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    yield from ((a[name], b[name]) for name in a)


def forgotten(*args: Any, **kwargs: Any) -> None:
    """Do nothing, in place of a necessary function."""


def never_synced(self: Any, last: bool) -> Any:
    return self._ddp.no_sync()


def tied_left_alone(self: Any, loss: Tensor, stop: bool) -> Any:
    return native.Native.reduce(self, loss, stop)


def mutants(world: World) -> dict[str, bool]:
    """Check that the proof detects each planted mistake."""
    planted: list[tuple[str, prove.Case, Any]] = [
        ("ddp: gradients never averaged", case("ddp"), patch.object(torch_ddp.TorchDDP, "_micro_batch", never_synced)),
        (
            "zero1: state of one rank only",
            case("zero1", name="zero1"),
            patch("torch.distributed.optim.ZeroRedundancyOptimizer._sync_params", forgotten),
        ),
        ("zero3: gradient not zeroed", case("zero3", name="zero3"), patch.object(native.Native, "zero", forgotten)),
        ("tp: gradients not settled", case("tp", tp=2), patch.object(torch_fsdp, "settle_gradients", forgotten)),
        (
            "pp: tied gradient forgotten",
            case("pp", pp=2),
            patch.object(torch_pipeline.TorchPipeline, "reduce", tied_left_alone),
        ),
        ("pp: loss not weighted", case("pp", pp=2), patch.object(torch_pipeline.TorchPipeline, "_weigh", unweighted)),
    ]
    if HAS_DEEPSPEED:
        engine = importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine
        planted += [
            (
                "deepspeed: reduced and stepped as if each micro-batch were the last",
                case("zero1", implementation="deepspeed", name="zero1"),
                patch.object(engine, "set_gradient_accumulation_boundary", always_last),
            ),
            (
                "deepspeed: loss divided by the number of micro-batches again",
                case("zero2", implementation="deepspeed", name="zero2"),
                patch.object(deepspeed.DeepSpeed, "_backward", lambda self, loss: self.engine.backward(loss)),
            ),
            (
                "deepspeed: gradient not clipped",
                case("zero3", implementation="deepspeed", name="zero3"),
                patch.object(deepspeed.DeepSpeed, "clip", unclipped),
            ),
        ]
    seen = {}
    for name, one, plant in planted:
        with plant:
            trace = prove.spread(one, world)
        world.forget_axes()
        if world.is_main:
            expected = prove.one_process(one, 1)
            seen[name] = not prove.compare(trace, expected, prove.TOLERANCE["fp32"])["equal"]
    return seen


def unweighted(self: Any, loss_1: Tensor, share_1: Tensor) -> Tensor:
    self._total += loss_1.detach().sum()
    return loss_1.sum()


def unclipped(self: Any, norm: float, max_norm: float) -> None:
    self.zero_optimizer.clip_grad = 1e9


def always_last(self: Any, is_boundary: bool) -> None:
    self._is_gradient_accumulation_boundary = True
    self.optimizer.set_gradient_accumulation_boundary(True)


def main() -> None:
    world = join_world(world_env(), torch.device("cpu"), timeout_s=60)
    results = {"relay": relay(world), "hooks": hooks(world), "scaled": scaled(world), "mutants": mutants(world)}
    if world.is_main:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1))
    world.barrier()
    world.leave()


main()
leave(0)
