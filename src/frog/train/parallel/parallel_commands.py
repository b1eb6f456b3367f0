"""`frog schedule`: draw and compare pipeline schedules. Needs no torch."""

from __future__ import annotations

import argparse

from frog.core.errors import UsageError
from frog.core.user_input import between
from frog.train.parallel.schedules.schedule import NAMES, Schedule, make_schedule
from frog.train.parallel.schedules.simulation import Simulation, bubble_formula, simulate


def add_schedule_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `schedule`; it sets `handler`, which takes the arguments."""
    parser = commands.add_parser(
        "schedule",
        help="draw a pipeline schedule, with its bubble and its memory",
        description="Simulate a pipeline schedule and draw it: frog schedule --schedule 1f1b --stages 4",
    )
    add = parser.add_argument
    add("--schedule", choices=[*NAMES, "all"], default="1f1b", help="default: 1f1b; all compares them")
    add("--stages", type=int, default=4, metavar="N", help="pipeline ranks (strategy.pp); default: 4")
    add(
        "--micro-batches",
        type=int,
        default=8,
        metavar="N",
        help="micro-batches per step (train.grad_accum); default: 8",
    )
    add("--virtual-stages", type=int, default=2, metavar="N", help="stages per rank, for interleaved only; default: 2")
    for what in ("forward", "backward", "weight"):
        add(
            f"--{what}-time",
            type=between(1e-9, 1e9),
            default=1.0,
            metavar="T",
            help="time of a micro-batch on a rank; default: 1",
        )
    add("--send-time", type=between(0, 1e9), default=0.0, metavar="T", help="time of a message; default: 0")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--list", action="store_true", help="list the actions in order, without times")
    shown.add_argument(
        "--program", type=int, metavar="RANK", help="show one rank's program with its sends and receives"
    )
    parser.set_defaults(handler=_schedule)


def _schedule(args: argparse.Namespace) -> int:
    from frog.train.parallel.schedules.drawing import draw, legend, table

    if args.schedule == "all" and (args.list or args.program is not None):
        raise UsageError(
            "--schedule all compares schedules; --list and --program show one schedule", "name one of them"
        )
    names = NAMES if args.schedule == "all" else (args.schedule,)
    simulations = [_simulate(args, make_schedule(name, *_sizes(args), args.virtual_stages)) for name in names]
    if args.program is not None:
        _print_program(simulations[0].schedule, args.program)
        return 0
    if len(simulations) == 1:
        schedule = simulations[0].schedule
        print(table(schedule) if args.list else draw(simulations[0]))
        print(f"\n{legend(schedule)}\n")
    print(_comparison(args, simulations))
    return 0


def _sizes(args: argparse.Namespace) -> tuple[int, int]:
    return args.stages, args.micro_batches


def _simulate(args: argparse.Namespace, schedule: Schedule) -> Simulation:
    return simulate(schedule, args.forward_time, args.backward_time, args.weight_time, args.send_time)


def _print_program(schedule: Schedule, rank: int) -> None:
    from frog.train.parallel.schedules.programs import program

    if not 0 <= rank < len(schedule.ranks):
        raise UsageError(f"--program {rank}: the ranks are 0 to {len(schedule.ranks) - 1}")
    print("\n".join(map(str, program(schedule, rank))))


def _comparison(args: argparse.Namespace, simulations: list[Simulation]) -> str:
    """Format a line for each schedule: time, bubble, the textbook's bubble, activations held."""
    rows = [("schedule", "time", "bubble", "formula", "held by each rank (micro-batches)")]
    for simulation in simulations:
        schedule = simulation.schedule
        formula = bubble_formula(
            schedule.name,
            *_sizes(args),
            schedule.virtual_stages,
            args.forward_time,
            args.backward_time,
            args.weight_time,
        )
        held = " ".join(f"{count / schedule.virtual_stages:g}" for count in simulation.peak_in_flight)
        cells = (f"{simulation.makespan:g}", f"{simulation.bubble:.1%}", f"{formula:.1%}", held)
        rows.append((schedule.name, *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
