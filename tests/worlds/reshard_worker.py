"""A rank that loads a checkpoint under every strategy and compares it, bit for bit, with the written state.

Arguments: a folder with runs, and the file for the results. Under each strategy the rank also writes a checkpoint of
its own, for the others to read, unless an earlier world of this size has written it.
"""

import functools
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from frog.core.env import world_env
from frog.core.processes import leave
from frog.core.runs.folder import RunFolder
from frog.train.checkpoint import Saver
from frog.train.checkpoint.load import Checkpoint, open_checkpoint, verify
from frog.train.comm import join_world
from frog.train.comm.local_shard import assemble, target_of
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.parallel.build_strategy import build_mesh, build_strategy
from frog.train.parallel.strategy import Strategy
from frog.train.prove.matrix import DEFAULT_VARIANTS, SMALL_MODEL, Cell, cells, proofs
from frog.train.prove.prove_rank import Case, local_batch, make_model, optimizer_config
from frog.train.state import TrainState, generators

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
env = world_env()
world = join_world(env, torch.device("cpu"), timeout_s=60)
scaler = torch.amp.GradScaler("cpu", enabled=False)


@functools.cache
def opened(run: str) -> Checkpoint:
    return open_checkpoint(RunFolder(folder / run).checkpoint(3))


def layout_of(run: str) -> str:
    """Return the tensor pieces that the run's files contain: everything that a reader sees."""
    tensors = opened(run).manifest.tensors
    return repr(
        [(name, sorted((piece.offset, piece.shape) for piece in tensors[name].pieces)) for name in sorted(tensors)]
    )


WRITTEN = sorted(path.name for path in folder.iterdir())
READ = list({layout_of(run): run for run in WRITTEN if not run.startswith(f"{world.size}_")}.values())
"""Runs written by a world of another size; one per layout."""
world.barrier()  # no rank writes until all have listed the runs


def state_of(strategy: Strategy) -> dict[str, Tensor]:
    """Return unsharded weights and moments, by name."""
    found = {f"model/{name}": tensor.clone() for name, tensor in strategy.whole()}
    shards = strategy.moment_shards()
    kinds = sorted({shard.name.partition("/")[0] for shard in shards})
    shapes = {f"{kind}/{name}": shape for kind in kinds for name, shape in strategy.shapes.items()}
    return found | {f"optimizer/{name}": tensor for name, tensor in assemble(shapes, shards, world.axis)}


@functools.cache
def written(run: str) -> dict[str, Tensor]:
    """Return the same, from the files."""
    checkpoint = opened(run)
    verify(checkpoint)
    whole = {name: torch.empty(entry.shape) for name, entry in checkpoint.manifest.tensors.items()}
    checkpoint.load_into(whole)
    return whole


def local_differences(state: TrainState, expected: dict[str, Tensor]) -> list[str]:
    """Return the tensors on this rank that differ from the files, bit for bit, in any copy.

    The state of an outer optimizer is excluded: no other strategy writes it.
    """
    return [
        one.name
        for one in state.shards()
        if (one.name in expected or not one.name.startswith("optimizer/outer_"))
        and not torch.equal(one.tensor, target_of(expected[one.name], one))
    ]


def save(state: TrainState, own: RunFolder) -> None:
    saver = Saver(own, world.rank, world.size, state.shards(), generators(), attempt="x", keep_last=1, timeout_s=60)
    saver.save(3, {**state.scalars(""), "step": 3}, generators(), state.shards())
    saver.wait()
    world.barrier()


def everywhere(differ: list[str]) -> list[str]:
    """Combine the differences of all ranks: rank 0 writes the results."""
    num = torch.tensor(len(differ))
    world.axis.all_reduce(num)
    return differ or ["another rank's"] * int(num)


results = {}
for implementation in ("frog", "torch"):
    names = [name for name in proofs(implementation) if not name.endswith("ep")]
    for cell in cells(SMALL_MODEL, [world.size], [implementation], DEFAULT_VARIANTS[:1], names):
        assert isinstance(cell, Cell), cell
        case = Case.of(cell.fields(0), Path("cases.json"))
        mesh = build_mesh(case.config, world)
        make_optimizer = functools.partial(build_optimizer, optimizer_config(case))
        strategy = build_strategy(case.config, mesh, make_model(case, seed=7), make_optimizer)
        for _ in range(3):  # creates torch's optimizer state; every load replaces its values
            loss = strategy.forward_backward(local_batch(case, mesh, 1), lambda loss: loss)
            strategy.reduce(loss, stop=False)
            strategy.step(scaler)
            strategy.zero()
        state = TrainState(strategy, scaler, strategy.shapes)
        label = f"{world.size} {implementation} {cell.strategy}"
        own = RunFolder(folder / label.replace(" ", "_"))
        is_new = own.path.name not in WRITTEN
        if is_new:
            save(state, own)
        for run in [*READ, own.path.name] if is_new else READ:
            state.load(opened(run), world.rank)
            differ = everywhere(local_differences(state, written(run)))
            if run == own.path.name:  # once for each strategy: its shards together are the complete state
                found, expected = state_of(strategy), written(run)
                differ += [name for name in expected if not torch.equal(found[name], expected[name])]
            steps = {int(count) for count in strategy.step_counts()}
            results[f"{run} -> {label}"] = differ + ([] if steps == {3} else [f"steps {steps}"])
        del strategy, state
        world.forget_axes()
if world.is_main:
    out.write_text(json.dumps(results))
world.barrier()
world.leave()
leave(0)
