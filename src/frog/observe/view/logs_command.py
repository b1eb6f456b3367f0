"""`frog logs`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import TYPE_CHECKING

from frog.core.user_input import at_least

if TYPE_CHECKING:
    from frog.observe.view.merged_logs import Choice, Entry

_MOST_BYTES = 48 << 10
"""Most bytes of existing entries to show, without --all."""


def add_logs_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `logs`."""
    parser = commands.add_parser(
        "logs",
        help="show the logs of all ranks and nodes as one stream",
        description="Show the logs of all ranks and nodes of a run, in chronological order (UTC).",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, a name under runs/, or 'latest'")
    parser.add_argument(
        "--rank", type=int, action="append", default=[], metavar="N", help="only the log of this rank; may be repeated"
    )
    parser.add_argument(
        "--node",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="only the logs of this node: its agent and its ranks; may be repeated",
    )
    parser.add_argument("--grep", metavar="PATTERN", help="only entries that match this regular expression")
    parser.add_argument(
        "--since", metavar="WHEN", help="only entries newer than a duration (10m) or a time in UTC (10:51)"
    )
    parser.add_argument("--tail", type=at_least(0), metavar="N", help="only the last N entries")
    parser.add_argument("--all", action="store_true", help="show all entries, not only the last 48 KiB")
    parser.add_argument("-f", "--follow", action="store_true", help="follow the logs until the run ends")
    parser.set_defaults(handler=_logs)


def _logs(args: argparse.Namespace) -> int:
    from frog.core.runs.folder import find_folder
    from frog.observe.view.merged_logs import Logs, check_choice, follow

    folder, choice = find_folder(args.run), _choice(args)
    if not args.follow:
        check_choice(folder, choice)
    logs = Logs(folder, choice)
    first = logs.catch_up() if args.follow else logs.read(close=True)
    lines = _lines(first if args.tail is None else first[max(0, len(first) - args.tail) :], logs.width)
    shown = lines if args.all else _last(lines)
    _show(shown)
    if len(shown) < len(lines):
        print(
            f"{len(lines) - len(shown):,} lines before these: use --all to show them, or --grep to search",
            file=sys.stderr,
        )
    if args.follow:
        for entries in follow(folder, logs):
            _show(_lines(entries, logs.width))
    return 0


def _choice(args: argparse.Namespace) -> Choice:
    from frog.core.errors import UsageError
    from frog.observe.view.merged_logs import Choice, parse_since

    try:
        pattern = re.compile(args.grep) if args.grep is not None else None
    except re.error as error:
        raise UsageError(f"--grep {args.grep}: not a regular expression: {error}") from None
    since_s = parse_since(args.since, time.time()) if args.since is not None else None
    return Choice(args.rank, args.node, pattern, since_s)


def _lines(entries: list[Entry], width: int) -> list[str]:
    from frog.core.terminal import shows_colour, terminal_columns
    from frog.observe.view.merged_logs import format_entry

    colour, columns = shows_colour(), terminal_columns()
    return [line for entry in entries for line in format_entry(entry, width, colour, columns).split("\n")]


def _last(lines: list[str]) -> list[str]:
    """Return the last entries, up to the default limit."""
    left, first = _MOST_BYTES, len(lines)
    while first and (left := left - len(lines[first - 1].encode(errors="replace")) - 1) >= 0:
        first -= 1
    return lines[first:]


def _show(lines: list[str]) -> None:
    from frog.core.terminal import print_coloured

    if lines:
        print_coloured("\n".join(lines))
