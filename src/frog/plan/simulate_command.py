"""`frog plan simulate MODEL`: simulate steps with disturbances. Imports happen when the command runs."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.core.user_input import at_least, between
from frog.plan.model_command import (
    add_layout_arguments,
    add_target_arguments,
    options_of,
    read_constants_of,
    read_target,
    refuse_beyond,
)

if TYPE_CHECKING:
    from frog.plan.estimate.rows import PlannedRun
    from frog.plan.simulate.simulation import Simulated

_CAUSES = {
    "compute": "computing",
    "exchange": "exchanges in layers, slower tp ranks",
    "pipeline": "messages between stages, bubble",
    "data": "gradients, parameters, other replicas",
    "optimize": "optimizer",
    "load": "loader, fixed time of a step",
}


def add_simulate_parser(actions: argparse._SubParsersAction[Any]) -> None:
    """Add `frog plan simulate`."""
    parser = actions.add_parser(
        "simulate",
        help="simulate steps with jitter, stragglers, slow or cut networks, a lost rank",
        description="Simulate the steps of a run event by event. Nothing runs; --to writes a run folder, marked as "
        "simulated, for frog report and frog diagnose.",
    )
    add_target_arguments(parser)
    add_layout_arguments(parser)
    group = parser.add_argument_group("disturbances; RANK and NODE count from 0, STEP from 1")
    group.add_argument(
        "--jitter", type=between(0, 10), default=0.0, metavar="X", help="mean delay of computations, like 0.02 for 2 %%"
    )
    group.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of the jitter; default: 0")
    group.add_argument("--slow", action="append", type=_slow, metavar="RANK:X", help="this rank takes X times as long")
    group.add_argument(
        "--slow-network",
        action="append",
        type=_slow,
        metavar="NODE:X",
        help="messages of this node take X times as long",
    )
    group.add_argument("--lose", type=_at_step, metavar="RANK@STEP", help="this rank is killed in that step")
    group.add_argument("--cut", type=_at_step, metavar="NODE@STEP", help="this node's network is cut from that step on")
    parser.add_argument("--steps", type=at_least(1), default=5, metavar="N", help="number of steps; default: 5")
    parser.add_argument("--to", type=Path, metavar="DIR", help="write a run folder, such as runs/simulated")
    parser.set_defaults(handler=_simulate)


def _slow(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"(\d{1,9}):(\d+(?:\.\d+)?)", text)
    if match is None or not 1 <= float(match[2]) <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: write it like 3:1.5, with a factor from 1 to 1e6")
    return int(match[1]), float(match[2])


def _at_step(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})@(\d{1,9})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write it like 3@2, for number 3 in step 2")
    return int(match[1]), int(match[2])


def _simulate(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.plan.estimate.budget import num_nodes
    from frog.plan.estimate.requests import request_run
    from frog.plan.simulate.disturbances import Disturbances
    from frog.plan.simulate.folder import MOST_RANKS, write_folder
    from frog.plan.simulate.simulation import simulate_steps

    named, cluster, num_gpus = read_target(args)
    run = replace(request_run(named, options_of(args), cluster, num_gpus), constants=read_constants_of(args))
    notes = refuse_beyond(run, args.anyway)
    disturbed = Disturbances(
        args.jitter, args.seed, dict(args.slow or ()), dict(args.slow_network or ()), args.lose, args.cut
    )
    if problems := disturbed.problems(num_gpus, num_nodes(num_gpus, cluster), args.steps):
        raise UsageError("; ".join(problems))
    if args.to is not None and num_gpus > MOST_RANKS:
        raise UsageError(
            f"--to: {num_gpus:,} ranks: must be at most {MOST_RANKS:,}", "without --to, any number can be simulated"
        )
    if args.to is not None and args.to.exists():
        raise UsageError(f"--to {args.to}: already exists", "choose another folder")
    simulated = simulate_steps(run.step, disturbed, args.steps, with_trace=args.to is not None)
    undisturbed_s = simulate_steps(run.step, Disturbances(), 1).step_s[0]
    for line in _lines(run, args.cluster, simulated, undisturbed_s):
        print(line)
    for note in [*notes, *run.layout.notes(run.model)]:
        print(f"note: {note}")
    if args.to is not None:
        write_folder(args.to, run, simulated, disturbed, args.steps, ["frog", *sys.argv[1:]])
        print(f"\nsimulated run: {args.to}\n  try: frog report {args.to}; frog diagnose {args.to}")
    return 0


def _lines(run: PlannedRun, cluster: str, simulated: Simulated, undisturbed_s: float) -> Iterator[str]:
    """Yield what was simulated, the time of each step, and where the mean rank's time goes."""
    from frog.plan.plan_text import run_lines

    step = run.step
    yield "SIMULATED: no GPU ran this"
    yield from run_lines(run, cluster)
    yield "\nstep        s"
    yield from (
        f"{number:>4} {seconds:>8.4g}" for number, seconds in enumerate(simulated.step_s, 1) if math.isfinite(seconds)
    )
    finished = [seconds for seconds in simulated.step_s if math.isfinite(seconds)]
    if len(finished) < len(simulated.step_s):
        yield f"{len(simulated.step_s):>4}    never ends"
    if finished:
        mean_s = sum(finished) / len(finished)
        more = f" ({100 * round(mean_s / undisturbed_s - 1, 3) + 0:+.1f} %)"
        yield f"mean {mean_s:>8.4g}; without disturbances {undisturbed_s:.4g}{more}; frog plan: {step.step.total:.4g}"
    if len(finished) == len(simulated.step_s):
        yield "\nwhere the time of a mean rank goes            s       %"
        total = sum(simulated.seconds.values())
        for cause, words in _CAUSES.items():
            if seconds := simulated.seconds.get(cause):
                yield f"  {words:<40} {seconds:>8.4g} {100 * seconds / total:>6.1f}"
