"""The step time that a calibrated profile of this machine predicts, against what it takes: strategies, worlds of 2, 4.

    python benchmarks/planner_here.py [--profile machine.toml] [--steps-scale 1.0] [--tiny]

Calibrates this machine with one thread per rank, unless a profile is given. Then every strategy from scratch of
`benchmarks/strategies.py` takes steps with random tokens, in turn; a step takes as long as its slowest rank. The table
has medians, and the errors of the prediction, as it is, for four measures of the step:

    median      of all steps
    at speed    the same, if the machine had kept the speed that the calibration saw: a virtual machine's own speed
                changes within seconds. Before each step, all ranks run the calibration's reference product; a step's
                time, without that of a slow network, is multiplied by that product's speed over the calibrated speed
    fastest     the median of the fastest quarter, since other programs slow the steps down
    processor   the processor time that a step needs, of the slowest rank or of all ranks over the cores. It lacks the
                waits for messages

A world of 4 on two cores runs two ranks on each. Then the small model on two simulated nodes with a slow network, which
is predicted from the delay and the rate that the network was given; the processor's time lacks most of such a step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from contenders import LARGER, MAX_NORM, SMALL, TINY, FrogLoop, Size
from strategies import TARGETS, VOCAB_SIZE, pair

from frog.core.config import DataConfig, RunConfig, TrainConfig
from frog.core.env import world_env
from frog.core.errors import LaunchError
from frog.core.machine import keep_freed_memory, usable_cores
from frog.core.processes import leave
from frog.launch.network import Network, parse_network
from frog.plan.estimate.hardware import find_cluster
from frog.plan.links import SlowNetwork, payload_rate
from frog.plan.machine.calibration import calibrate
from frog.plan.machine.costs import Machine
from frog.plan.machine.machine_rank import Stage, measure_reference
from frog.plan.machine.request import Request, quick
from frog.plan.machine.step import PHASES, PhaseTime, predict_step, step_time
from frog.plan.machine.world import worlds_of
from frog.train.comm import Axis, World, join_world
from frog.train.comm.axis import Silent
from frog.train.data import Batch
from frog.train.model import TinyTransformer

WORLDS = (2, 4)
NETWORKS = ("rate=1gbit delay=1ms", "rate=100mbit delay=5ms")
NETWORK_STEPS = 0.2
"""Factor for the number of steps with a slow network."""
STEPS = {SMALL: 40, LARGER: 6, TINY: 3}
SIZES = {size.name: size for size in STEPS}
WARMUP_STEPS = 2
TARGET = 0.15
COLUMNS = ("median", "at speed", "fastest", "processor")
MEASURED = ("median", "median at the calibration's speed", "fastest quarter", "processor time")
REFERENCE_BLOCK_S = 0.01


def config_of(name: str, size: Size, world_size: int) -> RunConfig:
    """Return the run file's content for one strategy."""
    strategy = pair(name, world_size)[0]
    train = TrainConfig(global_batch_size=size.batch_size * strategy.dp_size(world_size))
    return RunConfig(
        size.config(VOCAB_SIZE), data=DataConfig(sequence_length=size.sequence_length), train=train, strategy=strategy
    )


def possible(name: str, size: Size, world_size: int) -> bool:
    return not config_of(name, size, world_size).world_problems(world_size)


# ---- the ranks ----------------------------------------------------------------------------------------------------


def timed_step(loop: FrogLoop, tokens_BT: torch.Tensor, labels_BT: torch.Tensor) -> list[float]:
    """Return the seconds of each phase on this rank, of the step, and of the processor."""
    batch = Batch(0, np.empty(0), tokens_BT.unsqueeze(0), labels_BT.unsqueeze(0), (1.0,))
    at, used_s = [time.perf_counter()], time.process_time()
    loss = loop.strategy.forward_backward(batch, lambda loss: loss)
    at.append(time.perf_counter())
    loop.strategy.reduce(loss, stop=False)
    at.append(time.perf_counter())
    loop.strategy.clip(loop.strategy.norm(), MAX_NORM)
    loop.strategy.step(loop.scaler)
    loop.strategy.zero()
    at.append(time.perf_counter())
    phases = [end - start for start, end in itertools.pairwise(at)]
    return [*phases, sum(phases), time.process_time() - used_s]


def measure(size: Size, num_steps: int, world: World) -> dict[str, list[list[float]]]:
    """Return the seconds of each strategy's steps: by phase, the mean of the ranks; the slowest rank's step; the
    processor's; the speed of the reference product just before.
    """
    request = Request(((world.size, 1),), usable_cores(), block_s=REFERENCE_BLOCK_S)
    axis = Axis("world", range(world.size), world.rank, world.device, None, [Silent()])
    names = [name for name in TARGETS if possible(name, size, world.size)]
    loops, found = {}, {name: [] for name in names}
    for name in names:
        torch.manual_seed(0)
        loops[name] = FrogLoop(TinyTransformer(size.config(VOCAB_SIZE)), world, pair(name, world.size)[0])
    for number in range(WARMUP_STEPS + num_steps):
        for name in names:
            seed = number * world.size + (0 if name.startswith("tp") else world.rank)
            [batch] = size.batches(VOCAB_SIZE, 1, seed=seed)
            speed = measure_reference(Stage(axis, request, 1))
            dist.barrier()
            own = timed_step(loops[name], *batch)
            rows = world.gather_rows(torch.tensor(own, dtype=torch.float64))
            if number >= WARMUP_STEPS:
                used_s = max(float(rows[:, 4].max()), float(rows[:, 4].sum()) / usable_cores())
                found[name].append([*rows[:, :3].mean(0).tolist(), float(rows[:, 3].max()), used_s, speed])
    world.forget_axes()
    return found


def run_rank(target: Path, scale: float, sizes: list[Size]) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    world = join_world(world_env(), torch.device("cpu"), timeout_s=300)
    found = {size.name: measure(size, max(2, round(STEPS[size] * scale)), world) for size in sizes}
    if world.is_main:
        target.write_text(json.dumps(found))
    world.leave()
    leave(0)  # gloo may abort a process that unloads torch


# ---- prediction and measurement -----------------------------------------------------------------------------------


def measure_world(world_size: int, sizes: list[Size], scale: float, network: Network | None) -> dict[str, Any]:
    """Return the steps of the ranks of this machine, or of one rank on each node of a network."""
    with tempfile.TemporaryDirectory(prefix="frog-planner-") as folder:
        target = Path(folder) / "measured.json"
        names = [one.name for one in sizes]
        words = [__file__, "--rank-to", str(target), "--steps-scale", str(scale), "--sizes", *names]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if network is None:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world_size}"]
            subprocess.run([sys.executable, *launcher, *words], check=True, env=env)
        else:
            env |= {"MASTER_ADDR": network.address(0), "MASTER_PORT": "29500", "WORLD_SIZE": str(world_size)}
            env |= {"GLOO_SOCKET_IFNAME": network.interface}
            commands = [network.enter(rank, [sys.executable, *words]) for rank in range(world_size)]
            ranks = [subprocess.Popen(one, env={**env, "RANK": str(rank)}) for rank, one in enumerate(commands)]
            codes = [rank.wait() for rank in ranks]
            if any(codes):
                raise SystemExit("a rank failed")
        content: dict[str, Any] = json.loads(target.read_text())
        return content


def print_row(
    name: str, steps: list[list[float]], phases: dict[str, PhaseTime], speed: float, between_s: float
) -> list[float]:
    """Print one strategy: measured and predicted by phase, and the step's errors. Return the errors.

    `between_s` is the predicted time of a slow network, which does not depend on the machine's speed.
    """
    medians = [statistics.median(column) for column in zip(*steps, strict=True)]
    whole = sorted(step[3] for step in steps)
    fastest = statistics.median(whole[: max(1, len(whole) // 4)])
    at_speed = statistics.median(between_s + (step[3] - between_s) * step[5] / speed for step in steps)
    predicted = step_time(phases)
    measured = (medians[3], at_speed, fastest, medians[4])
    errors = [predicted / seconds - 1 for seconds in measured]
    parts = "".join(
        f"{phases[phase].total_s * 1e3:>9.1f}{seconds * 1e3:>9.1f}"
        for phase, seconds in zip(PHASES, medians, strict=False)
    )
    steps_ms = "".join(f"{seconds * 1e3:>9.1f}{error:>+6.0%}" for seconds, error in zip(measured, errors, strict=True))
    print(f"  {name:16}{parts}{predicted * 1e3:>9.1f}{steps_ms}", flush=True)
    return errors


def print_world(
    world_size: int, sizes: list[Size], measured: dict[str, Any], machine: Machine, network: SlowNetwork | None
) -> list[list[float]]:
    """Print the table of a world. Return the errors of each row."""
    errors, speed = [], 1 / machine.nearest(world_size).product_s
    heads = "".join(f"{phase:>18}" for phase in PHASES)
    print(f"  {'':16}{heads}{'step':>9}")
    print(f"  {'':16}" + f"{'plan':>9}{'median':>9}" * 3 + f"{'plan':>9}" + "".join(f"{name:>15}" for name in COLUMNS))
    for size in sizes:
        speeds = [step[5] for steps in measured[size.name].values() for step in steps]
        print(f"{size}; reference product {statistics.median(speeds) / 1e9:.0f} GFLOP/s, calibrated {speed / 1e9:.0f}")
        for name in TARGETS:
            if possible(name, size, world_size):
                config = config_of(name, size, world_size)
                phases = predict_step(config, world_size, machine, network)
                between_s = step_time(phases) - step_time(predict_step(config, world_size, machine))
                errors.append(print_row(name, measured[size.name][name], phases, speed, between_s))
            else:
                print(f"  {name:16} not possible")
    return errors


def profile_of(path: Path | None, world_sizes: tuple[int, ...], *, briefly: bool) -> tuple[Machine, str]:
    """Return the costs of this machine, of a file or measured now, and where they come from."""
    if path is None:
        worlds, cores = worlds_of(max(world_sizes), 1), usable_cores()
        found = calibrate(quick(worlds, cores) if briefly else Request(worlds, cores, ("fp32",)))
        return found.machine, found.source
    cluster = find_cluster(str(path))
    assert cluster.machine is not None
    return cluster.machine, cluster.source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, help="a profile of frog plan calibrate; default: calibrate now")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="factor for the number of steps")
    parser.add_argument("--tiny", action="store_true", help="small sizes and a world of 2, to check that it runs")
    parser.add_argument("--rank-to", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_to is not None:
        run_rank(args.rank_to, args.steps_scale, [SIZES[name] for name in args.sizes])
    sizes, world_sizes = ([TINY], WORLDS[:1]) if args.tiny else ([SMALL, LARGER], WORLDS)
    machine, source = profile_of(args.profile, world_sizes, briefly=args.tiny)
    print(f"profile: {source}")
    errors = []
    for world_size in world_sizes:
        load = os.getloadavg()[0]
        measured = measure_world(world_size, sizes, args.steps_scale, None)
        print(f"\nworld of {world_size}, {usable_cores():g} cores, 1 thread a rank, load {load:.1f} before; ms")
        errors += print_world(world_size, sizes, measured, machine, None)
    print_errors("", errors)
    errors = []
    for text in NETWORKS[:1] if args.tiny else NETWORKS:
        errors += run_network(text, sizes[:1], args.steps_scale * NETWORK_STEPS, machine)
    if errors:
        print_errors(" with a slow network", errors)


def run_network(text: str, sizes: list[Size], scale: float, machine: Machine) -> list[list[float]]:
    """Measure two nodes of one rank with a slow network, and print their table. Return the errors of each row."""
    link = parse_network(text)
    try:
        with Network(2, link) as network:
            measured = measure_world(2, sizes, scale, network)
    except LaunchError as error:
        print(f"\n{text}: not possible: {error}")
        return []
    print(f"\n2 nodes of 1 rank, {text}; ms")
    slow = SlowNetwork((0, 1), link.delay_s, payload_rate(link.rate_bits_per_s, link.mtu))
    return print_world(2, sizes, measured, machine, slow)


def print_errors(where: str, errors: list[list[float]]) -> None:
    for what, column in zip(MEASURED, zip(*errors, strict=True), strict=True):
        mean, within = statistics.mean(map(abs, column)), sum(abs(error) <= TARGET for error in column)
        verdict = f"target {TARGET:.0%}: {'reached' if mean <= TARGET else 'NOT reached'}"
        print(f"\nerror{where} against the {what}: mean {mean:.0%} ({verdict}); {within} of {len(column)} within")


if __name__ == "__main__":
    main()
