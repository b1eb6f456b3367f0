"""`frog drill`: inject a hidden fault into a run; the learner finds its rank, step and phase; record the score."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frog.core.config.faults import Fault

STEPS = 8
KINDS = ("kill", "raise", "stop")
PHASES = ("data", "forward", "backward", "reduce", "optimize", "zero")
"""The phases of every training step."""

_MOST_RANKS = 16
_STOPPED_S, _MOST_S = 8, 180.0


def add_drill_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog drill`."""
    parser = commands.add_parser(
        "drill",
        help="find the rank, the step and the phase of a failure in a run",
        description="Start a small run, inject one fault, and ask which rank failed, in which step and phase. "
        "The run folder contains logs, heartbeats and events. Answers may come from a pipe, one per line.",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="repeat the fault with this seed")
    parser.add_argument("--nproc", type=int, default=4, metavar="N", help="number of ranks (default: %(default)s)")
    parser.set_defaults(handler=_drill)


def _drill(args: argparse.Namespace) -> int:
    import random

    from frog.core.errors import UsageError
    from frog.core.runs.folder import free_name
    from frog.core.schema import shortened

    if not 2 <= args.nproc <= _MOST_RANKS:
        raise UsageError(f"--nproc {args.nproc}: must be 2 to {_MOST_RANKS}")
    seed = random.randrange(1_000_000) if args.seed is None else args.seed
    if not 0 <= seed < 2**63:  # the run's name has it
        raise UsageError(f"--seed {shortened(str(seed))}: must be 0 to 2^63 - 1")
    fault, name = draw_fault(seed, args.nproc), free_name(f"drill-{seed}")
    print(f"Starting a run of {args.nproc} ranks that will fail; this takes up to half a minute.", flush=True)
    run_into(fault, args.nproc, name)
    print(f"The run failed. Its logs and events are in runs/{name}/. In another shell:\n")
    print(f"  frog logs {name}\n  ls runs/{name}/heartbeats runs/{name}/events\n")
    print("`frog diagnose` also finds the answer: run it afterwards. Type q to quit.")
    answers = _answers(args.nproc)
    if answers is None:
        return 0
    right = [str(field) for field in (fault.rank, fault.step, fault.phase)]
    for what, given, expected in zip(("rank", "step", "phase"), answers, right, strict=True):
        print(f"{what} {given}: {'right' if given == expected else f'wrong, it was {expected}'}")
    num_right = sum(given == expected for given, expected in zip(answers, right, strict=True))
    print(f"\n{num_right} of {len(right)} right (seed {seed}): {fault}\nthe evidence: frog diagnose {name}")
    _keep(seed, str(fault), num_right)
    return 0


def draw_fault(seed: int, num_ranks: int) -> Fault:
    """Return the fault that a seed selects."""
    import random

    from frog.core.config.faults import Fault

    generator = random.Random(f"drill {seed}")
    return Fault(
        kind=generator.choice(KINDS),
        rank=generator.randrange(num_ranks),
        step=generator.randint(1, STEPS),
        phase=generator.choice(PHASES),
    )


def run_into(fault: Fault, num_ranks: int, name: str) -> None:
    """Inject the fault into a run. Hide the run's output, which would name the rank.

    Raises:  LaunchError with the last lines of output if the run never reached the fault.
    """
    import sys
    import tempfile

    from frog.core.errors import LaunchError
    from frog.launch.harness import Program
    from frog.measure.chaos.sandbox import faults_env, met_faults, tiny_program, write_faults

    world = ["--nproc", str(num_ranks), "--threads", "1"]
    if fault.kind == "stop":  # for other faults, no rank may count as stopped just because the machine is busy
        world += ["--deadline", str(_STOPPED_S)]
    words = [*tiny_program(), "--set", f"name={name}", "--set", f"train.steps={STEPS}"]
    with tempfile.TemporaryDirectory(prefix="frog-drill-") as scratch:
        faults = Path(scratch) / "faults.toml"
        write_faults(faults, [fault])
        command = [sys.executable, "-P", "-m", "frog.cli", "run", *world, "--", *words]
        with Program(command, Path(scratch), faults_env(faults)) as program:
            code = program.wait(_MOST_S)
        if not code or not met_faults(faults):
            said = "\n".join(program.output.splitlines()[-10:])
            raise LaunchError(f"the run did not fail as planned\n{said}", "frog doctor")


def _answers(num_ranks: int) -> list[str] | None:
    """Ask for rank, step and phase. Return None if the learner quits."""
    asked = (
        ("which rank failed first", [str(rank) for rank in range(num_ranks)]),
        ("in which step", [str(step) for step in range(1, STEPS + 1)]),
        ("in which phase", PHASES),
    )
    answers = []
    for question, choices in asked:
        answer = _answer(question, choices)
        if answer is None:
            return None
        answers.append(answer)
    return answers


def _answer(question: str, choices: Sequence[str]) -> str | None:
    """Ask until the answer is one of the choices. Return None if the learner quits."""
    from frog.learn.typed import read_answers

    for text in read_answers(f"{question}: {', '.join(choices)} > "):
        if text.lower() in choices:
            return text.lower()
        print(f"expected one of {', '.join(choices)}")
    return None


def _keep(seed: int, fault: str, right: int) -> None:
    """Record the drill in the learner's progress, if the current directory is in a course folder."""
    from frog.core.units import time_text
    from frog.learn.progress import NAME, DrillResult, find_folder, update_progress, with_drill

    folder = find_folder(Path.cwd())
    if folder is None:
        return
    result = DrillResult(at=time_text(), seed=seed, fault=fault, right=right)
    update_progress(folder, lambda progress: with_drill(progress, result))
    print(f"recorded in {folder / NAME}")
