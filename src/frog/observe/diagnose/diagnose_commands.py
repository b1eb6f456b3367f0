"""`frog diagnose`."""

from __future__ import annotations

import argparse
import json


def add_diagnose_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `diagnose`."""
    parser = commands.add_parser(
        "diagnose",
        help="find what went wrong in a run or in a log: the fault, rank, step, phase and collective",
        description="Find what went wrong in a run, from its folder alone, and print the evidence. Also reads what any "
        "other program left: logs, flight-recorder dumps, torchrun's error files, Slurm's output and sacct, py-spy "
        "dumps, folders of observers. Known errors of many libraries are explained.",
    )
    parser.add_argument(
        "paths",
        metavar="RUN_OR_PATH",
        nargs="*",
        help="a run folder, a name under runs/, 'latest', or any folder or file with evidence; '-' is standard input. "
        "Several paths are evidence of one job",
    )
    parser.add_argument("--explain-log", metavar="FILE", nargs="+", default=[], help="another name for RUN_OR_PATH")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as one JSON object")
    parser.set_defaults(handler=_diagnose)


def _diagnose(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.core.terminal import terminal_columns, wrapped_lines
    from frog.observe.diagnose.diagnosis import diagnosis_text
    from frog.observe.diagnose.find import diagnose_paths

    paths = [*args.paths, *args.explain_log]
    if not paths:
        raise UsageError("diagnose needs a run, a folder or a log", "frog diagnose latest, or frog diagnose job.log")
    if paths.count("-") > 1:
        raise UsageError("standard input (-) can be read only once", "name it once")
    answer = diagnose_paths(paths)
    if args.json:
        print(json.dumps(answer.as_json(), indent=2))
    else:
        print(wrapped_lines(diagnosis_text(answer.name, answer.diagnosis.shortened()), terminal_columns()))
    return 0
