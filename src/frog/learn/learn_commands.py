"""The command line of `frog learn`. The module behind each command is imported when the command runs."""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.errors import UsageError
from frog.core.user_input import at_least

if TYPE_CHECKING:
    _Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_learn_parser(commands: _Parsers) -> None:
    """Add `frog learn` and its subcommands."""
    parser = commands.add_parser(
        "learn",
        help="take the course: exercises that explain what is wrong with your code, and why",
        description="Show your progress in the course and the next step. In an empty folder, start the course there.",
    )
    parser.set_defaults(handler=_action("open_course"))
    actions = parser.add_subparsers(title="commands", metavar="COMMAND")
    init = _add(actions, "init", "create your course folder", "init")
    init.add_argument("folder", metavar="DIR", type=Path)
    init.add_argument(
        "--name", metavar="NAME", help="your name, as your instructor sees it (default: ask, or take it from git)"
    )
    begin = _add(
        actions, "start", "the first ten minutes: run two ranks, break one, read who noticed", "start", "start.tour"
    )
    begin.add_argument("--again", action="store_true", help="begin again with the first step")
    listing = _add(actions, "list", "list all exercises and mark the ones that passed", "list_exercises")
    listing.add_argument(
        "--fast", action="store_true", help="only the fast path, about 6 hours, for those who know training loops"
    )
    check = _add_of_exercise(actions, "check", "check your solution", "check", "checks")
    check.add_argument(
        "--seed", type=int, metavar="N", help="repeat the check with this seed; the result is not recorded"
    )
    check.add_argument("--json", action="store_true", help="print the verdict as JSON")
    _add_of_exercise(actions, "watch", "check again on every save", "watch", "checks")
    _add_of_exercise(actions, "hint", "show the next of three hints", "hint")
    solution = _add_of_exercise(actions, "solution", "show the solution of a passed exercise", "solution")
    solution.add_argument("--give-up", action="store_true", help="show it before you pass; this is recorded")
    _add_of_exercise(actions, "reset", "restore the original files; keep a copy of yours", "reset")
    predict = _add(actions, "predict", "predict a number before it is measured", "predict")
    predict.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        help="the number to predict (default: list the numbers that the exercise asks for)",
    )
    predict.add_argument("value", metavar="VALUE", nargs="*", help="such as 4096, 5.3MB, 2MiB, 12ms or 33%%")
    _add(
        actions,
        "progress",
        "show your progress and the accuracy of your predictions; also write an HTML page",
        "show_progress",
    )
    named = _add(actions, "name", "print or change your name", "name")
    named.add_argument("name", metavar="NAME", nargs="*", help="the new name")
    export = _add(actions, "export", "write your progress to one file, for an instructor", "export")
    export.add_argument("file", metavar="FILE", nargs="?", type=Path, help="default: frog-learn-NAME.json")
    _add_dev(actions)


def _add_dev(actions: _Parsers) -> None:
    parser = actions.add_parser("dev", help="tools for authors of exercises (docs/learn/exercises.md)")
    dev = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    new = _add(dev, "new", "create the folder of a new exercise", "new", "authoring")
    new.add_argument("exercise", metavar="EXERCISE", help="such as lab2/09_my_idea")
    show = _add(dev, "show", "print the files of a solution", "show", "authoring")
    add = _add(dev, "add", "add a solution: compute the edits that turn the reference into a file", "add", "authoring")
    for parser in (show, add):
        parser.add_argument("exercise", metavar="EXERCISE", help="an id, a number or a name")
    show.add_argument("solution", metavar="SOLUTION", help="wrong/NAME, right/NAME or reference")
    show.add_argument("--into", type=Path, metavar="DIR", help="write the files into this folder instead")
    add.add_argument("solution", metavar="SOLUTION", help="wrong/NAME or right/NAME; an existing one is replaced")
    add.add_argument("file", metavar="FILE", type=Path, nargs="+", help="a changed copy of the reference's file")
    about_check = "test exercises: their rules, and the verdict on each solution"
    check = _add(dev, "check", about_check, "check", "solution_checks")
    about_exercises = "an id, a number or a name (default: all, and labs/SOLUTIONS.md)"
    check.add_argument("exercise", metavar="EXERCISE", nargs="*", help=about_exercises)
    for parser in (new, show, add, check):
        parser.add_argument("--labs", type=Path, metavar="DIR", help="the labs (default: the installed course)")
    check.add_argument(
        "--write",
        action="store_true",
        help="write labs/SOLUTIONS.md in the current folder, or the sections of the named exercises",
    )
    about_table = "write labs/SOLUTIONS.md: the solutions that each exercise passes and rejects"
    _add(dev, "table", about_table, "write_table", "solution_checks")
    check.add_argument(
        "--times", type=at_least(1), default=1, metavar="N", help="number of times to check each solution (default: 1)"
    )
    check.add_argument(
        "--only", default="", metavar="WORD", help="check only solutions with this word in their name, such as wrong/"
    )
    check.add_argument(
        "--workers", type=at_least(1), default=2, metavar="N", help="number of concurrent checks (default: 2)"
    )


def _add(actions: _Parsers, name: str, does: str, action: str, module: str = "actions") -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
    parser.set_defaults(handler=_action(action, module))
    return parser


def _add_of_exercise(
    actions: _Parsers, name: str, does: str, action: str, module: str = "actions"
) -> argparse.ArgumentParser:
    parser = _add(actions, name, does, action, module)
    parser.add_argument(
        "exercise",
        metavar="EXERCISE",
        nargs="?",
        help="2.1, a name or a folder (default: the current folder's exercise)",
    )
    return parser


def _action(name: str, module: str = "actions") -> Callable[[argparse.Namespace], int]:
    """Return a function that imports a module of this package and calls its function `name`."""

    def handler(args: argparse.Namespace) -> int:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # for a terminal whose encoding lacks the check mark
        try:
            code: int = getattr(importlib.import_module(f"frog.learn.{module}"), name)(args)
            return code
        except BrokenPipeError:
            raise
        except OSError as problem:
            raise UsageError(
                f"{problem.filename or 'a file'}: {problem.strerror}",
                "check the permissions and the free space there",
            ) from None

    return handler
