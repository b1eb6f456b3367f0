"""`frog quiz [LAB]`: ask a round of questions; inside a course folder, record the result."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from frog.core.user_input import at_least

if TYPE_CHECKING:
    from frog.learn.quiz.round import Round

_COUNT = 9


def add_quiz_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog quiz`."""
    parser = commands.add_parser(
        "quiz",
        help="answer questions about a lab, a third of them from earlier labs",
        description="Ask questions. After each answer, explain what is right and why, and name the misconception "
        "behind a wrong answer. "
        "Lab 0, and a quiz of all labs, begin with three questions that show whether you are ready. "
        "Answers may come from a pipe, one per line.",
    )
    parser.add_argument("lab", metavar="LAB", type=int, nargs="?", help="number of the lab (default: all labs, mixed)")
    parser.add_argument("--seed", type=int, metavar="N", help="ask the questions of this seed again")
    parser.add_argument(
        "--count", type=at_least(1), default=_COUNT, metavar="N", help="number of questions (default: %(default)s)"
    )
    parser.set_defaults(handler=_quiz)


def _quiz(args: argparse.Namespace) -> int:
    import random

    from frog.learn.quiz.ask import take_round
    from frog.learn.quiz.pool import read_pools
    from frog.learn.quiz.round import ENOUGH, draw_round

    seed = random.randrange(1_000_000) if args.seed is None else args.seed
    drawn = draw_round(read_pools(), args.lab, seed, args.count)
    about = "all labs" if args.lab is None else f"lab {args.lab}"
    print(f"{about}, {len(drawn.questions)} questions, seed {seed}; type ? if you do not know, q to quit")
    if drawn.num_first:
        print(f"The first {drawn.num_first} show whether you are ready; with fewer than {ENOUGH} right, the quiz ends.")
    taken = take_round(drawn)
    print(f"\n{taken.num_right} of {len(taken.answers)} right (seed {seed})")
    _keep(taken, args.lab, seed)
    return 0


def _keep(taken: Round, lab: int | None, seed: int) -> None:
    """Record the round in the learner's progress, if the current directory is in a course folder."""
    from pathlib import Path

    from frog.core.units import time_text
    from frog.learn.progress import NAME, QuizResult, find_folder, update_progress, with_quiz

    folder = find_folder(Path.cwd())
    if folder is None or not taken.answers:
        return
    beliefs = tuple(belief for judged in taken.answers for belief in judged.beliefs)
    result = QuizResult(
        lab=lab, at=time_text(), seed=seed, asked=len(taken.answers), right=taken.num_right, beliefs=beliefs
    )
    update_progress(folder, lambda progress: with_quiz(progress, result))
    print(f"recorded in {folder / NAME}")
