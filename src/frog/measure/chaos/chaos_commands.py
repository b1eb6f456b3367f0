"""`frog chaos`: inject faults into a run. The handlers import their dependencies when they run."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frog.core.runs.vocabulary import PHASES
from frog.launch.launch_commands import add_gpus_argument, add_world_arguments, read_world

_EXAMPLE = 'frog chaos --fault "kill rank=1 step=3 phase=reduce" --nproc 2 -- train RUN.toml'


def add_chaos_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog chaos`."""
    parser = commands.add_parser(
        "chaos",
        help="inject faults into a run: specific faults, or a campaign of random ones",
        description=f"Start a world and inject faults. `frog chaos list` shows the kinds of faults. {_EXAMPLE}",
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="WORDS", help='"KIND rank=N step=N [phase=PHASE]"; repeatable'
    )
    parser.add_argument("--faults", type=Path, metavar="FILE.toml", help="a list of faults, as [[fault]] tables")
    parser.add_argument(
        "--campaign", metavar="N|all", help="draw N faults, or all possible ones; run each and check the outcome"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of a campaign (default: %(default)s)")
    parser.add_argument("--kinds", metavar="KIND,...", help="kinds of faults in a campaign; default: all possible ones")
    parser.add_argument(
        "--on-loss", choices=["shrink"], help="in a campaign: the runs must continue with the remaining ranks"
    )
    parser.add_argument(
        "--resume-test",
        type=Path,
        metavar="CHECKPOINTS",
        help="run a program that is not Frog's undisturbed, with the fault, and again; compare the checkpoints "
        "that it writes to this file or folder",
    )
    parser.add_argument(
        "--resume-args",
        default="",
        metavar="WORDS",
        help="arguments with which that program resumes: --resume-args=--resume (--resume-test)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="campaign table (default: chaos/seed-SEED.txt)")
    add_world_arguments(parser)
    add_gpus_argument(parser)
    parser.set_defaults(deadline=15.0)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="list, or -- train RUN.toml ..., or -- my.py ...")
    parser.set_defaults(handler=_chaos)


def _chaos(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError

    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if program == ["list"]:
        return _list()
    if is_other_program(program):
        return _inject_into_program(args, program)
    if args.resume_test is not None or args.resume_args:
        raise UsageError("--resume-test is for programs that are not Frog's", "frog chaos ... -- my.py")
    if args.simulate_gpus is not None:
        raise UsageError("--simulate-gpus is for programs that are not Frog's", "frog chaos ... -- my.py")
    if args.campaign is not None:
        if args.fault or args.faults:
            raise UsageError("a campaign draws its own faults", "omit --fault and --faults, or omit --campaign")
        from frog.measure.chaos.campaign import run_campaign

        return run_campaign(args, program)
    if args.on_loss is not None:
        raise UsageError("--on-loss requires --campaign", "for one run: -- train RUN.toml --set comm.on_loss=shrink")
    if not args.fault and args.faults is None:
        raise UsageError("no fault specified", _EXAMPLE)
    return _meet(args, program)


def is_other_program(program: Sequence[str]) -> bool:
    """True if a program is not Frog's, so that its steps and checkpoints are unknown."""
    from frog.launch.program import parse_program

    return bool(program) and parse_program(program).kind != "frog"


def _inject_into_program(args: argparse.Namespace, program: Sequence[str]) -> int:
    """Inject faults into a program that is not Frog's."""
    from frog.core.errors import UsageError
    from frog.measure.chaos.program import inject
    from frog.measure.chaos.program_faults import PROGRAM_EXAMPLE, parse_program_faults

    for option in ("campaign", "on_loss", "faults"):
        if getattr(args, option) is not None:
            name = option.replace("_", "-")
            raise UsageError(f"--{name} needs a training run of Frog's, not {program[0]}", PROGRAM_EXAMPLE)
    if not args.fault:
        raise UsageError("no fault specified", PROGRAM_EXAMPLE)
    nodes, options = read_world(args)
    options = replace(options, simulate_gpus=args.simulate_gpus)
    faults = parse_program_faults(args.fault, nodes.most * nodes.ranks, options.network is not None)
    if args.resume_test is None:
        return inject(nodes, program, options, faults)
    from frog.measure.chaos.resume_test import resume_test

    return resume_test(nodes, program, options, faults, args.resume_test, args.resume_args)


def _list() -> int:
    """Print every kind, with its phases and its effect."""
    from frog.core.config.fault_kinds import KINDS
    from frog.measure.chaos.program_faults import PROGRAM_EXAMPLE, PROGRAM_KINDS

    print("faults that can be injected when a rank begins a phase of a step:\n")
    for kind in KINDS.values():
        print(f"  {kind.name:<8} {kind.what}")
        where = "any phase" if set(kind.phases) == set(PHASES) else ", ".join(kind.phases)
        print(f"  {'':<8}   in {where}; default: {kind.default}")
    print(f"\nphases: {', '.join(PHASES)}\nother fields: micro=N (micro-batch), times=N (in N attempts)\n{_EXAMPLE}")
    print("\nfaults in a program that is not Frog's, when a rank starts its Nth collective, or after some seconds:\n")
    for name, program_kind in PROGRAM_KINDS.items():
        print(f"  {name:<8} {program_kind.what}")
    print(PROGRAM_EXAMPLE)
    return 0


def _meet(args: argparse.Namespace, program: Sequence[str]) -> int:
    """Run a world with these faults; return its exit code, or 1 if a fault never occurred."""
    from frog.core.config.faults import load_faults, parse_faults
    from frog.core.errors import LaunchError
    from frog.launch.world import run_world
    from frog.measure.chaos.sandbox import faults_env, met_faults, read_sandbox, write_faults

    nodes, options = read_world(args)
    sandbox = read_sandbox(program)
    scene = sandbox.scene(nodes, options.network is not None)
    faults = parse_faults(args.fault, scene) + (load_faults(args.faults, scene) if args.faults else [])
    with tempfile.TemporaryDirectory(prefix="frog-chaos-") as scratch:
        path = Path(scratch) / "faults.toml"
        write_faults(path, faults)
        try:
            code = run_world(nodes, sandbox.program, replace(options, extra_env=faults_env(path)))
        except LaunchError as error:
            print(f"error: {error}", file=sys.stderr)
            code = error.exit_code
        met = met_faults(path)
    for number, fault in enumerate(faults):
        if number not in met:
            print(f"fault never occurred: {fault}", file=sys.stderr)
    if code and met:
        print("see the evidence: frog diagnose latest", file=sys.stderr)
    return code or (1 if len(met) < len(faults) else 0)
