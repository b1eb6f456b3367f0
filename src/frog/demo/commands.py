"""`frog demo a|b|c`: play a session's demo."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.errors import UsageError
from frog.demo.page import write_page
from frog.demo.play import Player
from frog.demo.session import NAMES, Session, read_session

if TYPE_CHECKING:
    from rich.console import Console

_NEEDED = ("train.py", "scripts", "config")
"""What a demo shows of the repository, and copies into its folder."""

_MARK = ".frog-demo"
"""In a demo's folder: a file of this name says that it is one."""


def add_demo_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog demo`."""
    parser = commands.add_parser(
        "demo",
        help="play the demo of session A, B or C on real runs",
        description="Play a session's demo step by step: it prints what to say and what will be run, waits for Enter, "
        "runs it, and goes on after a step that failed. All outputs and reports stay in a folder.",
    )
    parser.add_argument("session", choices=NAMES)
    parser.add_argument("--auto", action="store_true", help="wait for nobody")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the demo's folder (default: demo-a, demo-b, demo-c)")
    parser.add_argument(
        "--from", dest="first", type=int, default=1, metavar="N", help="go on at step N, in that folder"
    )
    parser.add_argument("--list", action="store_true", help="print the steps and end")
    parser.set_defaults(handler=_demo)


def _demo(args: argparse.Namespace) -> int:
    session = read_session(args.session)
    if not 1 <= args.first <= len(session.steps):
        raise UsageError(f"--from {args.first}: the demo has steps 1 to {len(session.steps)}")
    from frog.core.console import console

    screen = console()
    if args.list:
        _print_steps(screen, session)
        return 0
    folder = _folder(args.out or Path(f"demo-{args.session}"), args.first)
    screen.print(
        f"{session.title}: {len(session.steps)} steps, {session.minutes} minutes with what is said; in {folder}\n"
    )
    player = Player(session, folder, args.auto, screen)
    is_right = player.play(args.first)
    screen.print(f"all of it: {write_page(folder, session, player.played)}")
    return 0 if is_right else 1


def _print_steps(screen: Console, session: Session) -> None:
    for number, step in enumerate(session.steps, 1):
        screen.print(f"{number}  {step.title}\n   $ {step.run}", soft_wrap=True)


def _folder(folder: Path, first: int) -> Path:
    """The demo's folder: a new one, or the one that is there to go on in."""
    if first > 1:
        if not folder.is_dir():
            raise UsageError(
                f"--from {first}: there is no {folder}", "begin with step 1, or name its folder: --out DIR"
            )
        if not (folder / _MARK).is_file():  # its steps would remove runs that are not the demo's
            raise UsageError(f"--from {first}: {folder} is no demo's folder", "begin with step 1")
        return folder
    missing = [name for name in _NEEDED if not Path(name).exists()]
    if missing:
        raise UsageError(
            f"a demo shows train.py, scripts/ and config/; here is no {missing[0]}", "run it where the repository is"
        )
    if folder.exists():
        raise UsageError(f"{folder}: exists already", f"go on in it: --from N; or --out {folder}-2; or remove it")
    folder.mkdir(parents=True)
    (folder / _MARK).touch()
    for name in _NEEDED:
        copy = shutil.copytree if Path(name).is_dir() else shutil.copyfile
        copy(name, folder / name)
    return folder
