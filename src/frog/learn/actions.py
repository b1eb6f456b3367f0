"""The actions of `frog learn` and its subcommands: from parsed arguments to printed text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.terminal import print_coloured, terminal_columns, wrapped_lines
from frog.learn.folder import LearnerFolder, check_new, create_folder, is_empty, known_name, open_folder
from frog.learn.grader.exercise import Exercise, fast_path, find_exercise
from frog.learn.journal import SHORT
from frog.learn.naming import checked_name, typed_name
from frog.learn.predictions import asked_by, find_prediction, missing
from frog.learn.progress import update_progress, with_guess, with_hint, with_name, with_records, with_solution
from frog.learn.standing import Standing, exercise_at, fast_lines, lab_page, list_lines, standing_in, summary_lines
from frog.learn.text import style_of_output
from frog.learn.verdict_text import hint_lines


def open_course(args: argparse.Namespace) -> int:
    """Start the course in an empty folder; in a course folder, show the learner's progress."""
    here = Path.cwd()
    if open_folder(here) is None:
        if not is_empty(here):
            raise UsageError(f"{here}: not a course folder, and not empty", "frog learn init ~/frog-course")
        return _begin(here, known_name(here))
    folder, standing = learner_here()
    print_lines(summary_lines(standing, folder, style_of_output()))
    return 0


def init(args: argparse.Namespace) -> int:
    check_new(args.folder)
    return _begin(
        args.folder, checked_name(args.name) if args.name is not None else typed_name(known_name(args.folder))
    )


def name(args: argparse.Namespace) -> int:
    """Print the learner's name, or change it."""
    folder, _ = learner_here()
    if args.name:
        new = checked_name(" ".join(args.name))
        update_progress(folder.path, lambda progress: with_name(progress, new))
    print(folder.progress().name)
    return 0


def _begin(path: Path, learner: str) -> int:
    print(wrapped_lines(f"Your course folder will be {path.absolute()}:", terminal_columns(), hang=0))
    print("  exercises/     read and complete these; README.md explains how")
    print("  docs/labs/     a page for each lab: goals, reasons, theory")
    print("  config/, scripts/, train.py  the programs that the pages run")
    print("  progress.json  your progress")
    folder = create_folder(path, learner=learner)
    git = " in a git repository" if (folder.path / ".git").exists() else ""
    print(f"Created {len(folder.exercises())} exercises{git}.")
    print(f"Your name on your instructor's page: {learner}. `frog learn name NAME` changes it.\n")
    lab0 = "Lab 0 begins by checking which labs this machine can run, and what to use instead of anything missing."
    print(wrapped_lines(lab0, terminal_columns(), hang=0))
    print(f"next: {'' if folder.path == Path.cwd() else f'cd {path} && '}frog doctor")
    if lab_page(folder.exercises()[0]):
        print(f"read: {lab_page(folder.exercises()[0])}, the page of the first lab")
    print("then: frog learn start, the first ten minutes with two ranks; later: frog learn")
    return 0


def learner_here() -> tuple[LearnerFolder, Standing]:
    """Return the course folder that contains the current directory, updated to the installed course."""
    folder = open_folder(Path.cwd())
    if folder is None:
        raise UsageError(f"{Path.cwd()}: not inside a course folder", "frog learn init ~/frog-course")
    for line in folder.keep_up():
        print(line, file=sys.stderr)
    return folder, standing_in(folder)


def chosen_exercise(
    args: argparse.Namespace, folder: LearnerFolder, standing: Standing, *, last: bool = False
) -> Exercise:
    """Return the named exercise, else the exercise of the current directory, else the next one (or the last one)."""
    place = Path(args.exercise or ".")
    if place.exists() and (at := exercise_at(place, folder, standing.exercises)):
        return at
    if args.exercise:
        return find_exercise(args.exercise, folder.labs)
    return standing.current if last else standing.next or standing.current


def print_lines(lines: Iterable[str]) -> None:
    print_coloured("\n".join(lines))


def list_exercises(args: argparse.Namespace) -> int:
    folder, standing = learner_here()
    if args.fast:
        print_lines(fast_lines(standing, fast_path(folder.labs), style_of_output()))
    else:
        print_lines(list_lines(standing, standing.next, style_of_output()))
    return 0


def hint(args: argparse.Namespace) -> int:
    folder, standing = learner_here()
    exercise = chosen_exercise(args, folder, standing)
    progress = update_progress(folder.path, lambda progress: with_hint(progress, exercise.id))
    print_lines(hint_lines(exercise, progress.work(exercise.id), style_of_output()))
    return 0


def solution(args: argparse.Namespace) -> int:
    folder, standing = learner_here()
    exercise = chosen_exercise(args, folder, standing, last=True)
    if standing.work(exercise).passed is None and not args.give_up:
        raise UsageError(
            f"{exercise.number}: you have not passed it yet",
            f"frog learn hint {exercise.number}; or frog learn solution {exercise.number} --give-up, which is recorded",
        )
    update_progress(folder.path, lambda progress: with_solution(progress, exercise.id))
    solved = exercise.reference()
    for name in exercise.manifest.files:
        text = solved[name]
        print(f"{'# ' if name.endswith('.py') else ''}---- {name}\n{text.decode(errors='replace')}")
    return 0


def reset(args: argparse.Namespace) -> int:
    folder, standing = learner_here()
    exercise = chosen_exercise(args, folder, standing, last=True)
    kept = folder.reset(exercise)
    print(f"{exercise.number}  {exercise.manifest.title}: restored to its original files")
    if kept:
        print(f"your files were moved to {folder.shown(kept)}/")
    return 0


def predict(args: argparse.Namespace) -> int:
    """List the predictions that the exercise asks for, show one of them, or record a value for it."""
    folder, standing = learner_here()
    here = exercise_at(Path.cwd(), folder, standing.exercises) or _to_predict(standing)
    if args.id is None:
        asked = asked_by(here)
        _print_wrapped(line for guessable in asked for line in guessable.lines(standing.progress))
        if not asked:
            print(f"{here.number} asks for no prediction")
        return 0
    guessable = find_prediction(args.id, here, folder.exercises())
    progress = standing.progress
    if args.value:
        guess = guessable.guess(" ".join(args.value))
        progress = update_progress(folder.path, lambda progress: with_guess(progress, guess))
    _print_wrapped(guessable.lines(progress))
    return 0


def _to_predict(standing: Standing) -> Exercise:
    """Return the last exercise if it passed without one of its predictions, else the next one."""
    last = standing.current
    return last if missing(last, standing.progress) else standing.next or last


def _print_wrapped(lines: Iterable[str]) -> None:
    style = style_of_output()
    print_lines(part for line in lines for part in style.wrap(line, indent=0))


def show_progress(args: argparse.Namespace) -> int:
    """Print a summary of the learner's progress and write the full page."""
    from frog.learn.progress_page import progress_lines, write_page

    folder, standing = learner_here()
    page = write_page(standing, folder.path / "progress.html")
    print_lines([*progress_lines(standing, style_of_output()), _head_line(standing), f"page: {page}"])
    return 0


def export(args: argparse.Namespace) -> int:
    from frog.learn.export import record_hashes, write_export

    folder, _ = learner_here()
    hashes = record_hashes(folder.path)
    update_progress(folder.path, lambda progress: with_records(progress, hashes))
    standing = standing_in(folder)
    print(f"written: {write_export(folder, standing, args.file)}")
    print(_head_line(standing))
    return 0


def _head_line(standing: Standing) -> str:
    """Return the line that an instructor writes down: the journal's latest hash, which covers all earlier entries."""
    progress = standing.progress
    return f"head: {progress.head[:SHORT]} {progress.name} ({len(progress.journal)} entries)"
