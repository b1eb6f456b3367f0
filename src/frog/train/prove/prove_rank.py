"""Proof that a strategy computes what one process computes: losses, gradients and weights, step by step.

    torchrun --nproc-per-node 4 -m frog.train.prove.prove_rank CASES.json RESULTS.json gloo

`frog prove` starts this. Each rank draws different weights, so that a strategy that forgets to broadcast them fails;
rank 0's count. The oracle is independent code: the plain model, the full batch, the run's optimizer over
full parameters (which tests/train/optim compares with torch's own). The compared tensors are assembled, bit for bit,
from all ranks' shards.

Tolerance: a tensor's largest difference over its largest value, 1e-5 in float32, since sums have a different order.
Adam divides a gradient by its own size, so it would turn the rounding noise in a vanishing gradient into a full step;
an epsilon of 1e-3 instead of 1e-8 keeps the noise in proportion. bf16 rounds to 8 bits, so there 5e-2 is allowed.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import DebugLevel, set_debug_level

from frog.core.config import OptimizerConfig, RunConfig
from frog.core.config.load import from_dict
from frog.core.config.model import IGNORED_LABEL
from frog.core.errors import FrogError
from frog.core.files import write_json
from frog.core.processes import leave
from frog.train.comm import World, join_world
from frog.train.data import Batch
from frog.train.hardware import autocast
from frog.train.model import TinyTransformer
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.optim.eager import EagerSGD
from frog.train.optim.tensors import Slice, UpdatedTensor
from frog.train.parallel.build_strategy import build_mesh, build_strategy
from frog.train.parallel.mesh import Mesh
from frog.train.process import RankProcess
from frog.train.prove.prove_files import CaseFields, read_cases

NUM_STEPS = 5
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-2}
_CPU = torch.device("cpu")
_MAX_NORM = 0.5
"""Below the norms of these gradients, so that clipping is proved too."""


@dataclass(frozen=True)
class Case:
    """One cell of the matrix. `config` has the model, the strategy, the batch and the precision."""

    name: str
    config: RunConfig
    frozen: bool
    """True if some parameters are frozen."""
    uneven: bool
    """True if the last rank's last sequence is padding, so that ranks hold different numbers of labels."""

    @classmethod
    def of(cls, fields: CaseFields, path: Path) -> Case:
        """Build a case from its fields; errors name the file."""
        return cls(fields.name, from_dict(fields.config, path), fields.frozen, fields.uneven)


@dataclass
class Trace:
    """The results of each step."""

    losses: list[float]
    gradients: list[dict[str, Tensor]]
    weights: list[dict[str, Tensor]]
    norms: list[float]


def make_model(case: Case, seed: int) -> TinyTransformer:
    """Build a model with random weights, some of which may be frozen."""
    torch.manual_seed(seed)
    model = TinyTransformer(case.config.model, case.config.train.activation_checkpointing)
    with torch.no_grad():  # norms that are all ones would hide a misplaced gradient
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    if case.frozen:
        for name, parameter in model.named_parameters():
            if "layers.0.mlp.up_proj" in name or "layers.0.input_layernorm" in name:
                parameter.requires_grad_(False)
    return model


def optimizer_config(case: Case) -> OptimizerConfig:
    """Return the run's optimizer settings with a constant rate, and an epsilon that the tolerance needs."""
    optimizer = case.config.optimizer
    return replace(optimizer, learning_rate=optimizer.entry.proof_rate, eps=1e-3)


def whole_parameters_optimizer(case: Case, named: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """Build the oracle's optimizer: every parameter full and separate, decay only on matrices."""
    tensors = [
        UpdatedTensor(p, (Slice(name, tuple(p.shape), 0, 0, p.numel()),), decayed=p.dim() > 1)
        for name, p in named.items()
    ]
    return build_optimizer(optimizer_config(case), tensors)


def global_batch(case: Case, step: int) -> tuple[Tensor, Tensor]:
    """Return all sequences of a step: tokens and labels.

    Shapes:  -> two of (global_batch_size, sequence_length)
    """
    generator = torch.Generator().manual_seed(1000 + step)
    size, length = case.config.train.global_batch_size, case.config.data.sequence_length
    tokens = torch.randint(0, case.config.model.vocab_size, (size, length + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    if case.uneven:
        labels[-1] = IGNORED_LABEL
    return tokens[:, :-1].contiguous(), labels


def local_batch(case: Case, mesh: Mesh, step: int) -> Batch:
    """Return this rank's part: a contiguous slice for each dp coordinate, divided into micro-batches."""
    tokens, labels = global_batch(case, step)
    num_labels = (labels != IGNORED_LABEL).sum()
    size = len(tokens) // mesh.dp.size
    own = slice(mesh.dp.rank * size, (mesh.dp.rank + 1) * size)
    accum = case.config.train.grad_accum
    labels_ABT = labels[own].view(accum, -1, labels.shape[1])
    counts = (labels_ABT != IGNORED_LABEL).sum(dim=(1, 2))
    shares = (counts * mesh.dp.size / num_labels).tolist()
    return Batch(step, np.arange(size), tokens[own].view_as(labels_ABT), labels_ABT, tuple(shares))


def one_process(case: Case, dp_size: int) -> Trace:
    """Run the oracle. `dp_size` matters for experts, whose load is balanced per micro-batch over all data ranks, and
    for separate replicas.
    """
    if case.config.strategy.entry.trains_locally:
        return replicas_in_turn(case, dp_size)
    model = make_model(case, seed=0)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = whole_parameters_optimizer(case, named)
    trace = Trace([], [], [], [])
    for step in range(1, NUM_STEPS + 1):
        with autocast(case.config.train.precision, _CPU):
            loss = _mixture_loss(model, case, dp_size, step) if _has_experts(case) else _dense_loss(model, case, step)
        loss.backward()  # type: ignore[no-untyped-call]
        trace.losses.append(loss.item())
        trace.gradients.append({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
        trace.norms.append(_clip(list(named.values())))
        optimizer.step()
        optimizer.zero_grad()
        trace.weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return trace


def replicas_in_turn(case: Case, num_replicas: int) -> Trace:
    """Run the oracle of separate replicas: one process takes every replica's steps, each on its own slice.

    The outer step is torch's SGD, whose gradient is the mean difference. Within a round replica 0's
    numbers are compared.
    """
    config, strategy = case.config, case.config.strategy
    outer = make_model(case, seed=0)
    trained = [p for p in outer.parameters() if p.requires_grad]
    momentum = strategy.outer_momentum
    outer_sgd = EagerSGD(trained, strategy.outer_learning_rate, momentum, nesterov=momentum > 0)
    replicas = [copy.deepcopy(outer) for _ in range(num_replicas)]
    trained_names = [name for name, p in outer.named_parameters() if p.requires_grad]
    own = [[p for p in replica.parameters() if p.requires_grad] for replica in replicas]
    optimizers = [
        whole_parameters_optimizer(case, dict(zip(trained_names, parameters, strict=True))) for parameters in own
    ]
    trace = Trace([], [], [], [])
    for step in range(1, NUM_STEPS + 1):
        tokens, labels = global_batch(case, step)
        num_labels = (labels != IGNORED_LABEL).sum().item()
        losses: list[float] = []
        norms: list[float] = []
        slices = zip(tokens.chunk(num_replicas), labels.chunk(num_replicas), strict=True)
        for replica, parameters, (tokens_BT, labels_BT) in zip(replicas, own, slices, strict=True):
            with autocast(config.train.precision, _CPU):
                logits = replica(tokens_BT).float().flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, labels_BT.flatten(), reduction="sum") * num_replicas / num_labels
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            if not norms:
                named = replica.named_parameters()
                trace.gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
            norms.append(_clip(parameters))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        meets = step % strategy.inner_steps == 0
        if meets:
            for parameter, *copies in zip(trained, *own, strict=True):
                changes = [parameter.detach() - trained_copy.detach() for trained_copy in copies]
                parameter.grad = torch.stack(changes).mean(0)
            outer_sgd.step()
            for parameters in own:
                for stale, parameter in zip(parameters, trained, strict=True):
                    stale.data.copy_(parameter.detach())
        trace.losses.append(sum(losses) / num_replicas if meets else losses[0])
        trace.norms.append(norms[0])
        trace.weights.append({name: p.detach().clone() for name, p in outer.named_parameters()})
    return trace


def _clip(parameters: list[nn.Parameter]) -> float:
    """Clip at the norm of all gradients, computed in float64: torch's own would be off in the fifth digit."""
    squares = [p.grad.double().square().sum() for p in parameters if p.grad is not None]
    norm = torch.stack(squares).sum().sqrt().item()
    if norm > _MAX_NORM:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(_MAX_NORM / norm)
    return norm


def _has_experts(case: Case) -> bool:
    return case.config.model.num_local_experts is not None


def _dense_loss(model: TinyTransformer, case: Case, step: int) -> Tensor:
    """Return the mean over all labels of the batch, from the logits."""
    tokens, labels = global_batch(case, step)
    return nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), labels.flatten())


def _mixture_loss(model: TinyTransformer, case: Case, dp_size: int, step: int) -> Tensor:
    """Return the mean over the micro-batches of all data ranks, each with the loss that balances its routers."""
    tokens, labels = (
        part.view(dp_size, case.config.train.grad_accum, -1, part.shape[1]) for part in global_batch(case, step)
    )
    losses = [model(tokens[:, micro].flatten(0, 1), labels[:, micro].flatten(0, 1)) for micro in range(tokens.shape[1])]
    return torch.stack(losses).mean()


def spread(case: Case, world: World) -> Trace:
    """Run the same steps with the strategy, in this world. A collective call."""
    mesh = build_mesh(case.config, world)
    model = make_model(case, seed=world.rank)
    make_optimizer = partial(build_optimizer, optimizer_config(case))
    strategy = build_strategy(case.config, mesh, model, make_optimizer, autocast(case.config.train.precision, _CPU))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    trace = Trace([], [], [], [])
    for step in range(1, NUM_STEPS + 1):
        loss = strategy.forward_backward(local_batch(case, mesh, step), lambda loss: loss)
        agreed = strategy.reduce(loss, stop=False) if strategy.reduces(step) else strategy.alone(loss)
        trace.losses.append(agreed.loss_mean)
        trace.gradients.append(_copies(strategy.assembled(strategy.gradient_shards()), world))
        trace.norms.append(strategy.norm())
        strategy.clip(trace.norms[-1], _MAX_NORM)
        strategy.step(scaler)
        strategy.zero()
        trace.weights.append(_copies(strategy.whole(), world))
    return trace


def _copies(named: Iterator[tuple[str, Tensor]], world: World) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in named if world.is_main}


def compare(found: Trace, expected: Trace, tolerance: float) -> dict[str, Any]:
    """Return the largest difference of each kind, and the first too large difference."""
    worst = {"loss": 0.0, "norm": 0.0, "gradient": 0.0, "weight": 0.0}
    wrong: list[str] = []
    bitwise = True

    def look(kind: str, step: int, name: str, a: Tensor, b: Tensor) -> None:
        nonlocal bitwise
        difference = (a - b).abs().max().item() / max(b.abs().max().item(), 1e-12)
        difference = difference if difference == difference else float("inf")  # NaN is worse than any number
        worst[kind] = max(worst[kind], difference)
        bitwise = bitwise and torch.equal(a, b)
        if difference > tolerance:
            wrong.append(f"{kind} of {name} after step {step} differs by {difference:.1e}")

    for step in range(NUM_STEPS):
        look("loss", step + 1, "the batch", torch.tensor(found.losses[step]), torch.tensor(expected.losses[step]))
        look("norm", step + 1, "the gradient", torch.tensor(found.norms[step]), torch.tensor(expected.norms[step]))
        for name, gradient in expected.gradients[step].items():
            look("gradient", step + 1, name, found.gradients[step][name], gradient)
        for name, weight in expected.weights[step].items():
            look("weight", step + 1, name, found.weights[step][name], weight)
    return {"equal": not wrong, "bitwise": bitwise, **worst, "first": wrong[0] if wrong else None}


def prove(cases: list[Case], world: World, oracles: dict[str, Trace]) -> list[dict[str, Any]]:
    """Run every case; on rank 0 return the result of `compare` for each. An impossible case is an error."""
    results: list[dict[str, Any]] = []
    for case in cases:
        try:
            trace = spread(case, world)
            world.forget_axes()
        except FrogError as error:
            if case.config.strategy.file is not None:
                raise  # perhaps only this rank has it, and the others wait in another collective
            results.append({"name": case.name, "equal": False, "first": f"{type(error).__name__}: {error}"})
            continue
        if world.is_main:
            key = _oracle_key(case, world.size)
            if key not in oracles:
                oracles[key] = one_process(case, case.config.strategy.dp_size(world.size))
            results.append({"name": case.name, **compare(trace, oracles[key], TOLERANCE[case.config.train.precision])})
    return results


def _oracle_key(case: Case, world_size: int) -> str:
    """Return everything on which an oracle depends."""
    config, train = case.config, case.config.train
    cut = (config.strategy.dp_size(world_size), train.grad_accum) if _has_experts(case) else None
    numbers = (train.global_batch_size, train.precision, case.frozen, case.uneven, config.optimizer)
    apart = (config.strategy, config.strategy.dp_size(world_size)) if config.strategy.entry.trains_locally else None
    return repr((config.model, config.data.sequence_length, numbers, cut, apart))


def _finite(result: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: such a difference becomes null, and the result describes it in words."""
    return {key: None if value == float("inf") else value for key, value in result.items()}


def main(arguments: list[str]) -> int:
    """Read the cases, run them in this world, write the results."""
    cases_path, results_path, backend = Path(arguments[0]), Path(arguments[1]), arguments[2]
    with RankProcess(has_steps=False) as rank:
        env = rank.begin()
        cases = [Case.of(fields, cases_path) for fields in read_cases(cases_path)]
        if any(case.config.strategy.file is not None for case in cases):
            set_debug_level(DebugLevel.DETAIL)  # compare the calls of all ranks: gloo aborts if they differ
        world = join_world(env, _CPU, timeout_s=60, backend=backend)
        try:
            results = prove(cases, world, {})
            if world.is_main:
                write_json(results_path, [_finite(result) for result in results])
            world.barrier()
        finally:
            world.leave()
    return rank.exit_code


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
