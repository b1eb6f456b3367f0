"""`frog logs`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frog.view.logs import Choice, Entry

_MOST_BYTES = 48 << 10
"""Shown of what is there already, unless all is asked for."""


def add_logs_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `logs`."""
    parser = subparsers.add_parser(
        "logs",
        help="the logs of all ranks and nodes as one stream",
        description="The logs of all ranks and nodes of a run, in order of time (UTC).",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, a name under runs/, or 'latest'")
    parser.add_argument(
        "--rank", type=int, action="append", default=[], metavar="N", help="this rank's; may be repeated"
    )
    parser.add_argument(
        "--node", type=int, action="append", default=[], metavar="N", help="this node's: its agent's and its ranks'"
    )
    parser.add_argument("--grep", metavar="PATTERN", help="only what matches this regular expression")
    parser.add_argument("--since", metavar="WHEN", help="only what is newer: 10m ago, or a time in UTC: 10:51")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N entries")
    parser.add_argument("--all", action="store_true", help="also where that is more than the last 48 KiB")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is said, until the run ends")
    parser.set_defaults(handler=_logs)


def _logs(args: argparse.Namespace) -> int:
    from frog.core.runfolder import find_folder
    from frog.view.logs import Logs, check_choice, follow

    folder, choice = find_folder(args.run), _choice(args)
    if not args.follow:
        check_choice(folder, choice)
    logs = Logs(folder, choice)
    first = logs.catch_up() if args.follow else logs.read(close=True)
    lines = _lines(first if args.tail is None else first[max(0, len(first) - args.tail) :], logs.width)
    shown = lines if args.all else _last(lines)
    _show(shown)
    if len(shown) < len(lines):
        print(f"{len(lines) - len(shown):,} lines before these: --all shows them, --grep finds", file=sys.stderr)
    if args.follow:
        for entries in follow(folder, logs):
            _show(_lines(entries, logs.width))
    return 0


def _choice(args: argparse.Namespace) -> Choice:
    from frog.core.errors import UsageError
    from frog.view.logs import Choice, parse_since

    if args.tail is not None and args.tail < 0:
        raise UsageError(f"--tail {args.tail}: a number of entries, 0 or more")
    try:
        pattern = re.compile(args.grep) if args.grep is not None else None
    except re.error as error:
        raise UsageError(f"--grep {args.grep}: not a regular expression: {error}") from None
    since_s = parse_since(args.since, time.time()) if args.since is not None else None
    return Choice(args.rank, args.node, pattern, since_s)


def _lines(entries: list[Entry], width: int) -> list[str]:
    from frog.core.env import variable
    from frog.view.logs import format_entry

    colour = sys.stdout.isatty() and variable("NO_COLOR") is None
    return [line for entry in entries for line in format_entry(entry, width, colour).split("\n")]


def _last(lines: list[str]) -> list[str]:
    """The last of them, as many as are shown without being asked for."""
    left, first = _MOST_BYTES, len(lines)
    while first and (left := left - len(lines[first - 1].encode(errors="replace")) - 1) >= 0:
        first -= 1
    return lines[first:]


def _show(lines: list[str]) -> None:
    from frog.core.printable import print_coloured

    if lines:
        print_coloured("\n".join(lines))
