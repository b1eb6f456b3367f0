"""The commands of this package. Imports happen when they run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.terminal import printable
from frog.core.units import count

if TYPE_CHECKING:
    from rich.console import Console

    from frog.core.runs.folder import RunFolder
    from frog.observe.view.compare_runs import Comparison


def add_report_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `report`; like the others here, it sets `handler`, which takes the arguments."""
    report = commands.add_parser("report", help="write a run's report: one HTML file that works offline")
    report.add_argument("run", metavar="RUN", help="a run folder, a name under runs/, or 'latest'")
    report.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: RUN/report.html")
    report.add_argument(
        "--timeline",
        action="store_true",
        help="write the page of `frog watch` instead, as one file; default: RUN/timeline.html",
    )
    report.add_argument("--open", action="store_true", help="open it in the browser")
    report.set_defaults(handler=_report)


def add_compare_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `compare`."""
    compare = commands.add_parser(
        "compare",
        help="compare two runs: bitwise equal, within tolerance, or different",
        description="Exit code 0 if the runs are equal or within tolerance, 1 if they are different.",
    )
    compare.add_argument("a", metavar="A", help="a run folder, a name under runs/, or 'latest'")
    compare.add_argument("b", metavar="B")
    compare.add_argument("--rtol", type=float, default=1e-5, help="largest relative difference within tolerance")
    compare.set_defaults(handler=_compare)


def add_runs_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `runs`."""
    runs = commands.add_parser("runs", help="list the runs")
    runs.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="default: runs")
    runs.set_defaults(handler=_runs)


def add_checkpoints_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `checkpoints`."""
    checkpoints = commands.add_parser("checkpoints", help="list a run's checkpoints and check their hashes")
    checkpoints.add_argument("run", metavar="RUN")
    checkpoints.set_defaults(handler=_checkpoints)


def add_tensorboard_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `tensorboard`."""
    tensorboard = commands.add_parser("tensorboard", help="write a run's numbers as TensorBoard event files")
    tensorboard.add_argument("run", metavar="RUN", help="a run folder, a name under runs/, or 'latest'")
    tensorboard.add_argument("--to", type=Path, metavar="DIR", help="default: RUN/tensorboard")
    tensorboard.set_defaults(handler=_tensorboard)


def _report(args: argparse.Namespace) -> int:
    from frog.core.browser import open_page
    from frog.core.runs.folder import find_evidence
    from frog.core.units import format_bytes
    from frog.observe.view.report import write_report

    folder = find_evidence(args.run)
    if args.timeline:
        from frog.observe.watch.film_page import write_timeline

        path = write_timeline(folder, args.output)
    else:
        path = write_report(folder, args.output)
    print(
        f"{'timeline' if args.timeline else 'report'}{_of_what(folder)}: {path} ({format_bytes(path.stat().st_size)})"
    )
    if args.open and not open_page(path):
        print("found no browser; open the file on a machine that has one")
    return 0


def _compare(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.core.runs.folder import find_run
    from frog.observe.view.compare_runs import compare_runs

    if not 0 <= args.rtol < float("inf"):
        raise UsageError(f"--rtol {args.rtol}: must be a finite number, 0 or more", "1e-5 is the default")
    comparison = compare_runs(find_run(args.a), find_run(args.b), args.rtol)
    _print_comparison(comparison)
    return comparison.exit_code


def _print_comparison(comparison: Comparison) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = _console()
    for side, line in zip("AB", comparison.titles, strict=True):
        screen.print(Text(f"{side}  {line}"))
    for note in comparison.notes:
        screen.print(Text(f"   {note}", style="dim"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    styles = {"equal": "green", "close": "yellow", "different": "red", "not compared": "dim"}
    for finding in comparison.findings:
        table.add_row(finding.what, Text(finding.outcome, style=styles[finding.outcome]), Text(finding.detail))
    screen.print(table)
    screen.print(Text(comparison.verdict, style=f"bold {styles[comparison.outcome]}"))


def _console() -> Console:
    """Return a console that wraps lines only for a terminal, not for a file or a pipe."""
    from frog.core.console import console

    return console(width=None if sys.stdout.isatty() else 200)


def _runs(args: argparse.Namespace) -> int:
    from rich.text import Text

    from frog.core.schema import shortened
    from frog.observe.view.runs import list_runs, runs_table

    rows = list_runs(args.runs)
    if not rows:
        print(f"no runs under {args.runs}/\n  try: `make demo` creates one")
        return 0
    screen = _console()
    screen.print(runs_table([row for row in rows if row.problem is None]))
    for problem in (problem for row in rows for problem in (row.problem, *row.unread[:1]) if problem is not None):
        screen.print(Text(f"skipped {shortened(printable(problem), 1000)}", style="yellow"))
    return 0


def _checkpoints(args: argparse.Namespace) -> int:
    """Print the checkpoints; return exit code 1 if one is damaged."""
    from frog.core.errors import CheckpointError
    from frog.core.runs.folder import find_run
    from frog.core.units import format_bytes
    from frog.observe.view.checkpoint_reader import open_checkpoint

    folder = find_run(args.run)
    steps = folder.checkpoint_steps()
    num_bad = 0
    for path in map(folder.checkpoint, steps):
        try:
            checkpoint = open_checkpoint(path)
            print(f"{path}  good  {count(checkpoint.world_size, 'rank')}  {format_bytes(checkpoint.payload_bytes)}")
        except CheckpointError as error:
            num_bad += 1
            print(f"{path}  BAD   {error.what}")
    if not steps:
        print(f"{folder.path}: no checkpoints")
    return 1 if num_bad else 0


def _tensorboard(args: argparse.Namespace) -> int:
    from frog.core.runs.folder import find_run
    from frog.observe.view.tensorboard import export_tensorboard

    run = find_run(args.run)
    folder = export_tensorboard(run, args.to)
    print(f"TensorBoard events{_of_what(run)}: {folder}\n  view: tensorboard --logdir {folder}")
    return 0


def _of_what(folder: RunFolder) -> str:
    """Return the words that mark what a simulation wrote."""
    is_simulated = folder.run_json.exists() and folder.read_run_json().simulated
    return " of a simulated run" if is_simulated else ""
