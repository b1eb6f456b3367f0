"""`frog diagnose`."""

from __future__ import annotations

import argparse
import json


def add_diagnose_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `diagnose`."""
    parser = subparsers.add_parser(
        "diagnose",
        help="say what went wrong in a run: which fault, rank, step, phase and collective",
        description="Say what went wrong in a run, from its folder alone, with the evidence.",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, a name under runs/, or 'latest'")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(handler=_diagnose)


def _diagnose(args: argparse.Namespace) -> int:
    from frog.core.runfolder import find_folder
    from frog.diagnose.diagnosis import letter
    from frog.diagnose.rules import diagnose

    folder = find_folder(args.run)
    found = diagnose(folder).shortened()
    print(json.dumps(found.as_json(), indent=2) if args.json else letter(str(folder.path), found))
    return 0
