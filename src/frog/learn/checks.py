"""`frog learn check` and `watch`: the commands that need a grader."""

from __future__ import annotations

import argparse

import msgspec

from frog.learn.actions import chosen_exercise, learner_here, print_lines
from frog.learn.empty import unsolved_if_empty
from frog.learn.grader.client import Grader
from frog.learn.grader.exercise import Exercise
from frog.learn.grader.verdict import Verdict
from frog.learn.predictions import missing
from frog.learn.progress import Progress, update_progress, with_verdict
from frog.learn.standing import Standing, lab_page, quiz_lines, standing_in, summary_lines, title_of
from frog.learn.text import style_of_output
from frog.learn.verdict_text import verdict_lines


def check(args: argparse.Namespace) -> int:
    """Check once. Return exit code 0 if the solution passed, else 1."""
    folder, standing = learner_here()
    with Grader() as grader:
        exercise = chosen_exercise(args, folder, standing)
        files = folder.files(exercise)
        verdict = unsolved_if_empty(grader.check(exercise, files, args.seed), exercise, files)
    progress = standing.progress
    if args.seed is None:
        progress = update_progress(folder.path, lambda progress: with_verdict(progress, verdict))
    standing = Standing(standing.exercises, progress)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(_shown(verdict, exercise, progress))).decode())
    else:
        lines = verdict_lines(verdict, exercise, progress, style_of_output())
        print_lines([*lines, *_next_lines(verdict, exercise, args, standing)])
    return 0 if verdict.status == "passed" else 1


def _shown(verdict: Verdict, exercise: Exercise, progress: Progress) -> Verdict:
    """Return the verdict, without its measurements if the learner has not predicted them yet."""
    if not missing(exercise, progress):
        return verdict
    return msgspec.structs.replace(verdict, predicted={}, measured=(), notes=())


def _next_lines(verdict: Verdict, exercise: Exercise, args: argparse.Namespace, standing: Standing) -> list[str]:
    if verdict.status != "passed":
        return []
    if args.seed is not None:
        return ["  A check with your own seed is not recorded. Without --seed, frog draws a new seed."]
    quiz = quiz_lines(standing, exercise.lab)
    if (then := standing.next) is None:
        return [*quiz, "  You passed every exercise: frog learn progress"]
    page = lab_page(then) if then.lab != exercise.lab else None
    begins = [f"  page of lab {then.lab}: {page}"] if page else []
    return [*quiz, f"  next: {then.number}  {title_of(then)}: exercises/{then.id}/README.md", *begins]


def watch(args: argparse.Namespace) -> int:
    """Check on every save, until the learner presses q."""
    from frog.learn.watch import watch_exercises

    folder, standing = learner_here()
    watch_exercises(folder, chosen_exercise(args, folder, standing), Grader)
    print_lines(summary_lines(standing_in(folder), folder, style_of_output()))
    return 0
