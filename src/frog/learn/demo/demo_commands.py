"""`frog demo a|b|c|d|e`: play a session's demo."""

from __future__ import annotations

import argparse
from pathlib import Path

from frog.core.errors import UsageError
from frog.learn.demo.demo_session import NAMES, Session, read_session


def add_demo_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog demo`."""
    parser = commands.add_parser(
        "demo",
        help="play the demo of session A, B, C, D or E on real runs",
        description="Play a session's demo step by step: print what to say, the command, and the question for the "
        "class; wait for Enter; run the command; then print the answer. The demo folder keeps all outputs and reports. "
        "If a step fails, the demo can continue with the next one.",
    )
    parser.add_argument("session", choices=NAMES)
    parser.add_argument("--auto", action="store_true", help="do not wait for Enter")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the demo's folder (default: demo-a; if it exists, demo-a-2; ...)"
    )
    parser.add_argument(
        "--from",
        dest="first",
        type=int,
        default=1,
        metavar="N",
        help="continue an earlier demo at step N, in its folder (default: the newest)",
    )
    parser.add_argument("--list", action="store_true", help="print the steps and exit")
    parser.set_defaults(handler=_demo)


def _demo(args: argparse.Namespace) -> int:
    session = read_session(args.session)
    if not 1 <= args.first <= len(session.steps):
        raise UsageError(f"--from {args.first}: this demo has steps 1 to {len(session.steps)}")
    if args.list:
        _print_steps(session)
        return 0
    from frog.core.console import console
    from frog.learn.demo.demo_page import page_path
    from frog.learn.demo.folders import new_folder, old_folder
    from frog.learn.demo.play import Player

    folder = (new_folder if args.first == 1 else old_folder)(args.session, args.out)
    print(f"{session.title}\n{len(session.steps)} steps, {session.minutes} minutes with discussion; folder: {folder}\n")
    is_right = Player(session, folder, args.auto, console()).play(args.first)
    print(f"all steps on one page: {page_path(folder)}")
    return 0 if is_right else 1


def _print_steps(session: Session) -> None:
    for number, step in enumerate(session.steps, 1):
        command = step.run.strip().replace("\n", "\n     ")
        print(f"{number}  {step.title} ({step.minutes} min)\n   $ {command}")
