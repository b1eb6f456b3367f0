"""`frog diagnose`."""

from __future__ import annotations

import argparse
import json


def add_diagnose_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `diagnose`."""
    parser = commands.add_parser(
        "diagnose",
        help="find what went wrong in a run: the fault, rank, step, phase and collective",
        description="Find what went wrong in a run, from its folder alone, and print the evidence. Also reads what any "
        "other program left: flight-recorder dumps, torchrun's error files, Slurm's output and sacct, py-spy dumps, "
        "logs.",
    )
    parser.add_argument(
        "run",
        metavar="RUN_OR_FOLDER",
        nargs="?",
        help="a run folder, a name under runs/, 'latest', or any folder or file with evidence",
    )
    parser.add_argument(
        "--explain-log",
        metavar="FILE",
        nargs="+",
        help="explain a distributed job's log by known errors instead; several files are logs of one job, '-' is stdin",
    )
    parser.add_argument("--json", action="store_true", help="print the diagnosis as one JSON object")
    parser.set_defaults(handler=_diagnose)


def _diagnose(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.core.terminal import terminal_columns, wrapped_lines
    from frog.observe.diagnose.diagnosis import diagnosis_text
    from frog.observe.diagnose.find import diagnose_path

    if args.explain_log:
        return _explain_log(args)
    if args.run is None:
        raise UsageError("diagnose needs a run", "frog diagnose latest, or frog diagnose --explain-log FILE")
    path, found = diagnose_path(args.run)
    if args.json:
        print(json.dumps(found.shortened().as_json(), indent=2))
    else:
        print(wrapped_lines(diagnosis_text(str(path), found.shortened()), terminal_columns()))
    return 0


def _explain_log(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.core.terminal import terminal_columns, wrapped_lines
    from frog.observe.diagnose.known_errors.letter import log_letter
    from frog.observe.diagnose.known_errors.read import explain_files

    if args.run is not None:
        raise UsageError("diagnose takes a run or --explain-log, not both", "leave one of them out")
    found = explain_files(args.explain_log)
    if args.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        print(wrapped_lines(log_letter(", ".join(args.explain_log), found), terminal_columns()))
    return 0
