"""`frog class` as typed."""

from __future__ import annotations

import argparse
from pathlib import Path

_MOST_PROBLEMS, _MOST_EDITS = 30, 8
"""How many are told here, the latter of a learner."""


def add_class_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog class`."""
    parser = commands.add_parser(
        "class",
        help="one page from what many learners exported: who stands where, what stops people",
        description="Make one offline page from files of `frog learn export`. "
        "Files that cannot be read, and edited ones, are named; the exit code is 1 then.",
    )
    parser.add_argument("reports", metavar="REPORTS", nargs="+", type=Path, help="files, or folders of .json files")
    parser.add_argument("--out", type=Path, default=Path("class.html"), metavar="FILE", help="default: class.html")
    parser.add_argument("--pseudonyms", action="store_true", help="no names on the page; who is who is printed here")
    parser.add_argument(
        "--heads", type=Path, metavar="FILE", help="heads that were written down in class: lines of HEAD NAME"
    )
    parser.set_defaults(handler=_make_page)


def _make_page(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.core.printable import printable
    from frog.core.schema import shortened
    from frog.course.classroom.heads import hold_against_heads, read_heads
    from frog.course.classroom.page import write_page
    from frog.course.classroom.reports import read_reports

    reports, problems = read_reports(args.reports)
    if args.heads:
        reports, unknown = hold_against_heads(reports, read_heads(args.heads), str(args.heads))
        problems += unknown
    for problem in problems[:_MOST_PROBLEMS]:
        print("\n".join(map(printable, f"cannot be used: {shortened(problem, 1000)}".splitlines())))
    if len(problems) > _MOST_PROBLEMS:
        print(f"... and {len(problems) - _MOST_PROBLEMS} more that cannot be used")
    for report in reports:
        who = f"{report.pseudonym} is {report.name}: " if args.pseudonyms else f"{report.name}: "
        for edit in report.edits[:_MOST_EDITS]:
            print(printable(shortened(f"edited: {who}{report.path}: {edit}", 500)))
        if len(report.edits) > _MOST_EDITS:
            print(printable(f"edited: {who}and in {len(report.edits) - _MOST_EDITS} more places: see the page"))
        if args.pseudonyms and not report.edits:
            print(printable(f"{who}{report.path}"))
    if not reports:
        raise UsageError("no file of `frog learn export` could be read", "see above; learners run `frog learn export`")
    path = write_page(reports, len(problems), args.out, args.pseudonyms)
    print(f"page: {path} ({len(reports)} learner{'' if len(reports) == 1 else 's'})")
    return 1 if problems or any(report.edits for report in reports) else 0
