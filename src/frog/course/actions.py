"""What `frog learn` and its commands do, from arguments to text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.printable import print_coloured
from frog.course.folder import LearnerFolder, create_folder, is_empty, open_folder
from frog.course.journal import SHORT
from frog.course.predictions import asked_by, find_prediction, missing
from frog.course.progress import update_progress, with_guess, with_hint, with_records, with_solution
from frog.course.standing import Standing, exercise_at, list_lines, standing_in, summary_lines
from frog.course.text import style_of_output
from frog.course.verdict_text import hint_lines
from frog.grader.exercise import Exercise, find_exercise


def open_course(args: argparse.Namespace) -> int:
    """Begin in an empty folder; elsewhere say where the learner stands."""
    here = Path.cwd()
    if open_folder(here) is None:
        if not is_empty(here):
            raise UsageError(f"{here}: is no folder of the course, and not empty", "frog learn init ~/frog-course")
        return _begin(here)
    folder, standing = learner_here()
    print_lines(summary_lines(standing, folder, style_of_output()))
    return 0


def init(args: argparse.Namespace) -> int:
    return _begin(args.folder)


def _begin(path: Path) -> int:
    print(f"Your folder for the course will be {path.absolute()}:")
    print("  exercises/     to read and to fill in; README.md says how")
    print("  progress.json  what you have done")
    folder = create_folder(path)
    git = ", in a git repository" if (folder.path / ".git").exists() else ""
    print(f"Created, with {len(folder.exercises())} exercises{git}.\n")
    print(
        "Lab 0 begins with a look at this machine: what runs here, and what takes its place where something does not."
    )
    print(f"next: {'' if folder.path == Path.cwd() else f'cd {path} && '}frog doctor")
    print("then: frog learn")
    return 0


def learner_here() -> tuple[LearnerFolder, Standing]:
    """The learner's folder around the current one, up to date with the course."""
    folder = open_folder(Path.cwd())
    if folder is None:
        raise UsageError(f"{Path.cwd()}: is in no folder of the course", "frog learn init ~/frog-course")
    for line in folder.keep_up():
        print(line, file=sys.stderr)
    return folder, standing_in(folder)


def chosen_exercise(
    args: argparse.Namespace, folder: LearnerFolder, standing: Standing, *, last: bool = False
) -> Exercise:
    """The exercise that was named, else the one in whose folder this is, else the next one (or the last one)."""
    place = Path(args.exercise or ".")
    if place.exists() and (at := exercise_at(place, folder, standing.exercises)):
        return at
    if args.exercise:
        return find_exercise(args.exercise, folder.labs)
    return standing.current if last else standing.next or standing.current


def print_lines(lines: Iterable[str]) -> None:
    print_coloured("\n".join(lines))


def list_exercises(args: argparse.Namespace) -> int:
    _, standing = learner_here()
    print_lines(list_lines(standing, standing.next, style_of_output()))
    return 0


def hint(args: argparse.Namespace) -> int:
    folder, standing = learner_here()
    exercise = chosen_exercise(args, folder, standing)
    progress = update_progress(folder.path, lambda progress: with_hint(progress, exercise.id))
    print_lines(hint_lines(exercise, progress.work(exercise.id).hints, style_of_output()))
    return 0


def solution(args: argparse.Namespace) -> int:
    folder, standing = learner_here()
    exercise = chosen_exercise(args, folder, standing, last=True)
    if standing.work(exercise).passed is None and not args.give_up:
        raise UsageError(
            f"{exercise.number} is not passed yet",
            f"frog learn hint {exercise.number}; or frog learn solution {exercise.number} --give-up, which is noted",
        )
    update_progress(folder.path, lambda progress: with_solution(progress, exercise.id))
    for name, text in exercise.reference().files().items():
        print(f"{'# ' if name.endswith('.py') else ''}---- {name}\n{text.decode(errors='replace')}")
    return 0


def reset(args: argparse.Namespace) -> int:
    folder, standing = learner_here()
    exercise = chosen_exercise(args, folder, standing, last=True)
    kept = folder.reset(exercise)
    print(f"{exercise.number}  {exercise.manifest.title}: as it was shipped")
    if kept:
        print(f"what was there is in {folder.shown(kept)}/")
    return 0


def predict(args: argparse.Namespace) -> int:
    """Without arguments: what is asked for. With an id: that. With a value: predict it."""
    folder, standing = learner_here()
    here = exercise_at(Path.cwd(), folder, standing.exercises) or _to_predict(standing)
    if args.id is None:
        asked = asked_by(here)
        _print_wrapped(line for one in asked for line in one.lines(standing.progress))
        if not asked:
            print(f"{here.number} asks for none")
        return 0
    one = find_prediction(args.id, here, folder.exercises())
    progress = standing.progress
    if args.value:
        guess = one.guess(" ".join(args.value))
        progress = update_progress(folder.path, lambda progress: with_guess(progress, guess))
    _print_wrapped(one.lines(progress))
    return 0


def _to_predict(standing: Standing) -> Exercise:
    """The last exercise if it was passed without a prediction that it asks for, else the next one."""
    last = standing.current
    return last if missing(last, standing.progress) else standing.next or last


def _print_wrapped(lines: Iterable[str]) -> None:
    style = style_of_output()
    print_lines(part for line in lines for part in style.wrap(line, indent=0))


def show_progress(args: argparse.Namespace) -> int:
    """A summary here, and all of it on a page."""
    from frog.course.progress_page import progress_lines, write_page

    folder, standing = learner_here()
    page = write_page(standing, folder.path / "progress.html")
    print_lines([*progress_lines(standing, style_of_output()), _head_line(standing), f"page: {page}"])
    return 0


def export(args: argparse.Namespace) -> int:
    from frog.course.export import record_hashes, write_export

    folder, _ = learner_here()
    hashes = record_hashes(folder.path)
    update_progress(folder.path, lambda progress: with_records(progress, hashes))
    standing = standing_in(folder)
    print(f"written: {write_export(folder, standing, args.file)}")
    print(_head_line(standing))
    return 0


def _head_line(standing: Standing) -> str:
    """What an instructor writes down: it stands for all that was noted until now."""
    progress = standing.progress
    return f"head: {progress.head[:SHORT]} {progress.learner} ({len(progress.journal)} entries)"
