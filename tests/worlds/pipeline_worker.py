"""A rank that runs correct and broken pipelines, and records the difference of each from one process.

Started by test_pipeline_world.py, which defines the cases: `pipeline_worker.py CASES.json OUT_FOLDER`.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from frog.core.config import ModelConfig
from frog.core.config.model import split_dim
from frog.core.env import world_env
from frog.core.processes import leave
from frog.train.comm import Axis, World, join_world
from frog.train.data import Batch
from frog.train.model import TinyTransformer
from frog.train.parallel.data.ddp import OverlappedDDP
from frog.train.parallel.mesh import Mesh
from frog.train.parallel.model import deferred, pipeline
from frog.train.parallel.model.pipeline import Pipeline
from frog.train.parallel.model.stages import Stages, build_stages, make_tied_axis
from frog.train.parallel.model.tensor import split_model
from frog.train.parallel.schedules.schedule import Schedule, make_schedule
from frog.train.parallel.schedules.simulation import simulate

T = 16


class Counter:
    """Counts collectives by operation and axis: their number and their bytes."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}

    def __call__(self, op: str, axis: str, payload_bytes: int) -> Counter:
        count, total = self.seen.get(f"{op} {axis}", [0, 0])
        self.seen[f"{op} {axis}"] = [count + 1, total + payload_bytes]
        return self

    def done(self, end_ns: int, wait_ns: int) -> None:
        return


def build_model(case: dict[str, Any], seed: int) -> TinyTransformer:
    torch.manual_seed(seed)
    config = ModelConfig(**case["model"])
    model = TinyTransformer(config, activation_checkpointing=case["checkpointing"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in case["frozen"]))
    return model


def build_batch(case: dict[str, Any], dp_rank: int) -> Batch:
    accum, size = case["accum"], case["batch"]
    tokens = torch.from_numpy(np.random.default_rng(dp_rank).integers(0, 96, (accum, size, T + 1)))
    shares = torch.arange(1.0, accum + 1) if case["uneven"] else torch.ones(accum)
    return Batch(
        step=1,
        ids_N=np.arange(accum * size),
        tokens_ABT=tokens[..., :-1].contiguous(),
        labels_ABT=tokens[..., 1:].contiguous(),
        loss_weight_A=tuple((shares / shares.sum()).tolist()),
    )


def oracle(case: dict[str, Any], dp: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Compute with one process: the loss of each data rank, and the mean gradient over them."""
    model, losses = build_model(case, seed=1000), []
    for dp_rank in range(dp):
        batch, total = build_batch(case, dp_rank), torch.zeros(())
        for micro, share in enumerate(batch.loss_weight_A):
            with precision(case):
                loss = model(batch.tokens_ABT[micro], batch.labels_ABT[micro]) * share
            (loss * case["scale"] / dp).backward()
            total += loss.detach()
        losses.append(total)
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def precision(case: dict[str, Any]) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16) if case["autocast"] else nullcontext()


def broken_schedule(schedule: Schedule) -> Schedule:
    """Omit the last micro-batch: an off-by-one error."""
    last = schedule.num_micro - 1
    ranks = tuple(tuple(action for action in actions if action.micro != last) for actions in schedule.ranks)
    return Schedule(schedule.name, last, schedule.virtual_stages, ranks)


def plant(mutant: str | None, patch: pytest.MonkeyPatch) -> None:
    """Break one part of the pipeline."""
    if mutant == "forgotten tied sum":
        patch.setattr(Pipeline, "reduce_tied", lambda self: None)
    elif mutant == "labels of the next micro-batch":
        forward = pipeline._Run._forward

        def shifted(self: Any, action: Any) -> None:
            batch = self._batch
            self._batch = Batch(1, batch.ids_N, batch.tokens_ABT, batch.labels_ABT.roll(-1, 0), batch.loss_weight_A)
            forward(self, action)
            self._batch = batch

        patch.setattr(pipeline._Run, "_forward", shifted)
    elif mutant == "one buffer for all messages":
        buffers: dict[int, Tensor] = {}
        buffer = Pipeline.buffer
        patch.setattr(Pipeline, "buffer", lambda self, tokens: buffers.setdefault(id(self), buffer(self, tokens)))
    elif mutant == "gradient passed on unchanged":
        backward = pipeline._Run._backward

        def pass_on(self: Any, action: Any) -> None:
            stage = action.stage
            needed = self._schedule.needs(action)
            arrived = self._arriving[needed][1] if not self._is_last(stage) else None
            backward(self, action)
            if arrived is not None and action in self._made:
                self._made[action] = arrived.clone()

        patch.setattr(pipeline._Run, "_backward", pass_on)
    elif mutant == "weight gradients of the micro-batch before":
        before: list[Any] = []

        def stale(due: list[Any]) -> None:
            deferred.add_weight_gradients(before[-1] if before else due)
            before.append(due)

        patch.setattr(pipeline, "add_weight_gradients", stale)
    elif mutant == "sum for average":
        run = Pipeline.run

        def summed(self: Any, batch: Batch, *rest: Any, **more: Any) -> Tensor:
            ones = (1.0,) * len(batch.loss_weight_A)
            return run(self, Batch(1, batch.ids_N, batch.tokens_ABT, batch.labels_ABT, ones), *rest, **more)

        patch.setattr(Pipeline, "run", summed)
    else:
        assert mutant in (None, "off-by-one schedule"), mutant


def run_case(case: dict[str, Any], world: World, counter: Counter) -> dict[str, Any]:
    """Run one case on this rank; return the differences of its loss and gradients from the oracle's."""
    mesh = Mesh(world, **case["mesh"])
    model = build_model(case, seed=1000 + world.rank)
    for parameter in model.parameters():
        world.axis.broadcast(parameter.data)
    tied = make_tied_axis(mesh) if model.config.tie_word_embeddings else None
    if mesh.tp.size > 1:
        split_model(model, mesh.tp, sequence_parallel=True)
    schedule = make_schedule(case["schedule"], mesh.pp.size, case["accum"], case["virtual"])
    if case["mutant"] == "off-by-one schedule":
        schedule = broken_schedule(schedule)
    stages = Stages(build_stages(model, mesh.pp, schedule.virtual_stages), mesh.pp, schedule.virtual_stages)
    line = Pipeline(stages, mesh.pp, schedule, tied=tied, token_shards=mesh.tp.size, autocast=precision(case))
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    data = OverlappedDDP(named, mesh.dp, bucket_bytes=8192) if named else None

    batch = build_batch(case, mesh.dp.rank)
    counter.seen.clear()
    spans: list[tuple[str, int]] = []

    def span(phase: Any, micro: int = 0, /) -> AbstractContextManager[None]:
        spans.append((phase, micro))
        return nullcontext()

    loss = line.run(batch, lambda loss: loss * case["scale"], span, data)
    seen = dict(counter.seen)
    if data is not None:
        data.finish()
    line.reduce_tied()
    mesh.pp.all_reduce(loss)
    if mesh.tp.size > 1:  # the norms' gradients cover only the rank's own positions
        for name, parameter in named.items():
            if split_dim(name) is None:
                mesh.tp.all_reduce(parameter.grad)

    model.eval()
    evaluated = line.loss(batch.tokens_ABT[0], batch.labels_ABT[0])
    losses, gradients = oracle(case, mesh.dp.size)
    whole = build_model(case, seed=1000).eval()
    with torch.no_grad(), precision(case):
        expected_evaluated = whole(batch.tokens_ABT[0], batch.labels_ABT[0])
    found = {name: p.grad for name, p in named.items()}
    expected = {name: part_of(name, gradients[name], mesh.tp) for name in found if name in gradients}
    return {
        "names": sorted(name for name, _ in model.named_parameters()),
        "repeats": sorted(name for name, _ in model.named_parameters() if line.repeats(name)),
        "trained": sorted(found),
        "unexpected": sorted(found.keys() - gradients.keys()),
        "loss": error_of(loss, losses[mesh.dp.rank]),
        "evaluated": error_of(evaluated, expected_evaluated),
        "gradient": max((error_of(found[name], expected[name]) for name in expected), default=0.0),
        "bitwise": sorted(name for name in expected if torch.equal(found[name], expected[name])),
        "peak_in_flight": line.peak_in_flight,
        "simulated_peak": simulate(schedule).peak_in_flight[mesh.pp.rank],
        "forwards": sum(phase == "forward" for phase, _ in spans),
        "backwards": sum(phase == "backward" for phase, _ in spans),
        "collectives": seen,
    }


def part_of(name: str, gradient: Tensor, tp: Axis) -> Tensor:
    dim = split_dim(name)
    return gradient if tp.size == 1 or dim is None else gradient.chunk(tp.size, dim)[tp.rank]


def error_of(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, as a multiple of the tolerance (rtol 1e-5, atol 1e-7): above 1 they differ."""
    return float(((found - expected).abs() / (1e-5 * expected.abs() + 1e-7)).max())


def main() -> None:
    cases, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    world = join_world(world_env(), torch.device("cpu"), timeout_s=60)
    counter = Counter()
    world.report_to(counter)
    results = {}
    for name, case in cases.items():
        with pytest.MonkeyPatch.context() as patch:
            plant(case["mutant"], patch)
            results[name] = run_case(case, world, counter)
    (folder / f"rank_{world.rank}.json").write_text(json.dumps(results))
    world.leave()


main()
leave(0)
