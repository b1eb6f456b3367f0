"""`frog learn`: the course, as typed. Whatever carries a command out is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.errors import UsageError

if TYPE_CHECKING:
    _Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_learn_parser(commands: _Parsers) -> None:
    """Add `frog learn` and what follows it."""
    parser = commands.add_parser(
        "learn",
        help="the course: exercises that say what is wrong with what you wrote, and why",
        description="Say where you stand in the course and what to do next; in an empty folder, begin it there.",
    )
    parser.set_defaults(handler=_action("open_course"))
    actions = parser.add_subparsers(title="commands", metavar="COMMAND")
    init = _add(actions, "init", "make a folder of your own for the course", "init")
    init.add_argument("folder", metavar="DIR", type=Path)
    _add(actions, "list", "all exercises, and which are passed", "list_exercises")
    check = _add_of_exercise(actions, "check", "check what you wrote", "check", "checks")
    check.add_argument("--seed", type=int, metavar="N", help="repeat the check that had this seed; it is not noted")
    check.add_argument("--json", action="store_true", help="print the verdict as JSON")
    _add_of_exercise(actions, "watch", "check again whenever you save", "watch", "checks")
    _add_of_exercise(actions, "hint", "one hint more, of three", "hint")
    solution = _add_of_exercise(actions, "solution", "show the solution of an exercise that is passed", "solution")
    solution.add_argument("--give-up", action="store_true", help="show it before that; this is noted")
    _add_of_exercise(actions, "reset", "bring the files back as they were shipped; yours are kept", "reset")
    predict = _add(actions, "predict", "say what a number will be, before it is measured", "predict")
    predict.add_argument("id", metavar="ID", nargs="?", help="which number; without: those that the exercise asks for")
    predict.add_argument("value", metavar="VALUE", nargs="*", help="such as 4096, 5.3MB, 2MiB, 12ms or 33%%")
    _add(actions, "progress", "what you have done, and how good your predictions were; with a page", "show_progress")
    export = _add(actions, "export", "write what you have done to one file, for an instructor", "export")
    export.add_argument("file", metavar="FILE", nargs="?", type=Path, help="default: frog-learn-NAME.json")
    _add_dev(actions)


def _add_dev(actions: _Parsers) -> None:
    parser = actions.add_parser("dev", help="for those who add exercises (docs/exercises.md)")
    dev = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    new = _add(dev, "new", "make the folder of an exercise", "new", "zoo")
    new.add_argument("exercise", metavar="EXERCISE", help="such as lab2/09_my_idea")
    check = _add(dev, "check", "prove exercises: the stub, the reference, each wrong solution", "check", "zoo")
    check.add_argument(
        "exercise", metavar="EXERCISE", nargs="*", help="an id, a number or a name (default: all, and labs/ZOO.md)"
    )
    for parser in (new, check):
        parser.add_argument("--labs", type=Path, metavar="DIR", help="where labs lie (default: the course's)")
    check.add_argument("--write", action="store_true", help="write labs/ZOO.md in the current folder")
    check.add_argument("--times", type=int, default=1, metavar="N", help="check each so many times (default: 1)")
    check.add_argument("--only", default="", metavar="WORD", help="those with that word in their name, such as wrong/")
    check.add_argument("--workers", type=int, default=2, metavar="N", help="so many at a time (default: 2)")


def _add(actions: _Parsers, name: str, does: str, action: str, module: str = "actions") -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
    parser.set_defaults(handler=_action(action, module))
    return parser


def _add_of_exercise(
    actions: _Parsers, name: str, does: str, action: str, module: str = "actions"
) -> argparse.ArgumentParser:
    parser = _add(actions, name, does, action, module)
    parser.add_argument(
        "exercise", metavar="EXERCISE", nargs="?", help="2.1, a name or a folder; default: where you are"
    )
    return parser


def _action(name: str, module: str = "actions") -> Callable[[argparse.Namespace], int]:
    """A function of a file of this room, which is imported when it is called."""

    def handler(args: argparse.Namespace) -> int:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that has no tick shows another character
        try:
            code: int = getattr(importlib.import_module(f"frog.course.{module}"), name)(args)
            return code
        except BrokenPipeError:
            raise
        except OSError as problem:
            raise UsageError(
                f"{problem.filename or 'a file'}: {problem.strerror}",
                "see who may write there, and how much space is left",
            ) from None

    return handler
