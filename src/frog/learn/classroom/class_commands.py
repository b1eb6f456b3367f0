"""The command line of `frog class`."""

from __future__ import annotations

import argparse
from pathlib import Path

_MOST_PROBLEMS, _MOST_EDITS = 30, 8
"""Maximum numbers of problems, and of edits per learner, that the command prints."""


def add_class_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog class`."""
    parser = commands.add_parser(
        "class",
        help="make one page from a class's exports: each learner's progress, and common obstacles",
        description="Make one offline page from files written by `frog learn export`. "
        "If any file is unreadable or edited, the command names it and exits with code 1.",
    )
    parser.add_argument("reports", metavar="REPORTS", nargs="+", type=Path, help="files, or folders with .json files")
    parser.add_argument("--out", type=Path, default=Path("class.html"), metavar="FILE", help="default: class.html")
    parser.add_argument(
        "--pseudonyms", action="store_true", help="use pseudonyms on the page, and print the names here"
    )
    parser.add_argument(
        "--heads", type=Path, metavar="FILE", help="file with the heads written down in class, one HEAD NAME per line"
    )
    parser.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="also write a table for a learning-management system, one line per learner",
    )
    parser.set_defaults(handler=_make_page)


def _make_page(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.core.schema import shortened
    from frog.core.terminal import printable
    from frog.learn.classroom.class_page import write_page
    from frog.learn.classroom.heads import compare_with_heads, read_heads
    from frog.learn.classroom.reports import labels, read_reports
    from frog.learn.classroom.table import write_table

    reports, problems = read_reports(args.reports)
    if args.heads:
        reports, unknown = compare_with_heads(reports, read_heads(args.heads), str(args.heads))
        problems += unknown
    for problem in problems[:_MOST_PROBLEMS]:
        print("\n".join(map(printable, f"skipped: {shortened(problem, 1000)}".splitlines())))
    if len(problems) > _MOST_PROBLEMS:
        print(f"... and {len(problems) - _MOST_PROBLEMS} more skipped files")
    for name, report in zip(labels(reports, pseudonyms=False), reports, strict=True):
        who = f"{report.pseudonym} is {name}: " if args.pseudonyms else f"{name}: "
        for edit in report.edits[:_MOST_EDITS]:
            print(printable(shortened(f"edited: {who}{report.path}: {edit}", 500)))
        if len(report.edits) > _MOST_EDITS:
            print(printable(f"edited: {who}{len(report.edits) - _MOST_EDITS} more places, listed on the page"))
        if args.pseudonyms and not report.edits:
            print(printable(f"{who}{report.path}"))
    if not reports:
        raise UsageError(
            "none of the files is a readable export of `frog learn export`",
            "see the problems above; learners run `frog learn export` to write one",
        )
    learners = f"({len(reports)} learner{'' if len(reports) == 1 else 's'})"
    print(f"page: {write_page(reports, len(problems), args.out, args.pseudonyms)} {learners}")
    if args.csv:
        print(f"table: {write_table(reports, args.csv, args.pseudonyms)} {learners}")
    return 1 if problems or any(report.edits for report in reports) else 0
