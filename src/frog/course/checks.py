"""`frog learn check` and `watch`: what needs a grader."""

from __future__ import annotations

import argparse

import msgspec

from frog.course.actions import chosen_exercise, learner_here, print_lines
from frog.course.predictions import missing
from frog.course.progress import Progress, update_progress, with_verdict
from frog.course.standing import Standing, quiz_lines, standing_in, summary_lines, title_of
from frog.course.text import style_of_output
from frog.course.verdict_text import verdict_lines
from frog.grader.client import Grader
from frog.grader.exercise import Exercise
from frog.grader.verdict import Verdict


def check(args: argparse.Namespace) -> int:
    """Check once. Exit code 0: passed; 1: not."""
    folder, standing = learner_here()
    with Grader() as grader:
        exercise = chosen_exercise(args, folder, standing)
        verdict = grader.check(exercise, folder.files(exercise), args.seed)
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
    """Without what was measured, as long as the learner has not predicted it."""
    if not missing(exercise, progress):
        return verdict
    return msgspec.structs.replace(verdict, predicted={}, measured=(), notes=())


def _next_lines(verdict: Verdict, exercise: Exercise, args: argparse.Namespace, standing: Standing) -> list[str]:
    if verdict.status != "passed":
        return []
    if args.seed is not None:
        return ["  A check with a seed of yours is not noted. Without --seed a new one is drawn."]
    quiz = quiz_lines(standing, exercise.lab)
    if (then := standing.next) is None:
        return [*quiz, "  Every exercise is passed: frog learn progress"]
    return [*quiz, f"  next: {then.number}  {title_of(then)}: exercises/{then.id}/README.md"]


def watch(args: argparse.Namespace) -> int:
    """Check on every save, until q."""
    from frog.course.watch import watch_exercises

    folder, standing = learner_here()
    watch_exercises(folder, chosen_exercise(args, folder, standing), Grader)
    print_lines(summary_lines(standing_in(folder), folder, style_of_output()))
    return 0
