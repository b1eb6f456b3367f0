"""`frog diagnose`."""

from __future__ import annotations

import argparse
import json


def add_diagnose_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `diagnose`."""
    parser = subparsers.add_parser(
        "diagnose",
        help="find what went wrong in a run: the fault, rank, step, phase and collective",
        description="Find what went wrong in a run, from its folder alone, and print the evidence.",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, a name under runs/, or 'latest'")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as one JSON object")
    parser.set_defaults(handler=_diagnose)


def _diagnose(args: argparse.Namespace) -> int:
    from frog.core.wrapping import terminal_columns, wrapped_lines
    from frog.diagnose.diagnosis import letter
    from frog.diagnose.rules import diagnose
    from frog.runs.folder import find_folder

    folder = find_folder(args.run)
    found = diagnose(folder).shortened()
    if args.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        print(wrapped_lines(letter(str(folder.path), found), terminal_columns()))
    return 0
