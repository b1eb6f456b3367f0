"""The course folder: created once, updated with the course, and never overwritten without a backup."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import threading
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace
from small_course import SOLUTION, STUB, verdict, write_course

import frog
from frog.core.errors import UsageError
from frog.learn.folder import LearnerFolder, create_folder, open_folder
from frog.learn.grader.exercise import READ, find_exercise, find_exercises, find_pages
from frog.learn.progress import Progress, find_folder, read_progress, update_progress, with_hint, with_verdict
from frog.learn.quiz.pool import read_pools


@pytest.fixture
def labs(tmp_path: Path) -> Path:
    return write_course(tmp_path / "labs")


@pytest.fixture
def folder(tmp_path: Path, labs: Path) -> LearnerFolder:
    return create_folder(tmp_path / "mine", labs)


def step_of(folder: LearnerFolder, name: str = "1.1") -> Path:
    return folder.place(find_exercise(name, folder.labs)) / "step.py"


def test_course_folder_contains_stubs_and_pages_but_no_solutions(folder: LearnerFolder) -> None:
    place = folder.path / "exercises" / "lab1" / "01_first"
    assert sorted(path.name for path in place.iterdir()) == ["README.md", "step.py"]
    assert (folder.path / "README.md").exists()
    assert (folder.path / "docs" / "labs" / "lab1.md").read_text() == "# Lab 1\n"
    assert folder.progress().exercises.keys() == {"lab1/01_first", "lab1/02_second", "lab2/01_third"}


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_course_folder_is_a_git_repository_of_the_original_files(folder: LearnerFolder) -> None:
    step_of(folder).write_text(SOLUTION)
    words = ("git", "diff", "--name-only")
    assert subprocess.check_output(words, cwd=folder.path, text=True).split() == ["exercises/lab1/01_first/step.py"]


def test_course_folder_is_found_from_a_subfolder(folder: LearnerFolder, tmp_path: Path) -> None:
    found = open_folder(step_of(folder).parent)
    assert found is not None
    assert found.path == folder.path
    assert find_folder(tmp_path) is None


def test_nonempty_folder_is_not_turned_into_a_course_folder(folder: LearnerFolder, labs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is already a course folder"):
        create_folder(folder.path, labs)
    with pytest.raises(UsageError, match="is not empty"):
        create_folder(tmp_path, labs)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        create_folder(tmp_path / "file", labs)


def test_folder_with_only_hidden_files_counts_as_empty(tmp_path: Path, labs: Path) -> None:
    (tmp_path / "new" / ".venv").mkdir(parents=True)
    create_folder(tmp_path / "new", labs)


def test_reset_backs_up_the_files_it_replaces(folder: LearnerFolder) -> None:
    exercise = find_exercise("1.1", folder.labs)
    assert folder.reset(exercise) is None
    for text in ("mine\n", "mine again\n"):
        step_of(folder).write_text(text)
        kept = folder.reset(exercise)
        assert kept is not None
        assert (kept / "step.py").read_text() == text
        assert step_of(folder).read_text() == STUB
    assert len(list((folder.path / "backups" / exercise.id).iterdir())) == 2


def test_course_update_replaces_only_unchanged_files_and_lists_the_others(folder: LearnerFolder) -> None:
    step_of(folder, "1.2").write_text(SOLUTION)
    for name in ("lab1/01_first", "lab1/02_second"):
        (folder.labs / name / "step.py").write_text("# newer\n" + STUB)
    shutil.copytree(folder.labs / "lab2" / "01_third", folder.labs / "lab2" / "02_fourth")
    (folder.labs / "docs" / "labs" / "lab1.md").write_text("# Newer\n")
    updated, left, page = folder.keep_up()
    assert page == "docs/labs/lab1.md: updated to the course's newer version"
    assert "01_first/step.py" in updated
    assert "02_second/step.py" in left
    assert "yours is unchanged" in left
    assert step_of(folder, "1.1").read_text().startswith("# newer")
    assert step_of(folder, "1.2").read_text() == SOLUTION
    assert step_of(folder, "2.2").read_text() == STUB
    assert folder.keep_up() == []


def test_course_update_moves_unchanged_pages_and_keeps_pages_with_notes(folder: LearnerFolder) -> None:
    shipped, mine = folder.labs / "docs", folder.path / "docs"

    def old_page(name: str, now: str) -> None:
        """Make a page of an earlier course, as the learner has it now."""
        (mine / name).write_text(now)
        digest = hashlib.sha256(b"# Old\n").hexdigest()
        update_progress(folder.path, lambda progress: replace(progress, pages=progress.pages | {name: digest}))

    (shipped / "train").mkdir()
    (shipped / "train" / "strategies.md").write_text("# Strategies\n")
    old_page("strategies.md", "# Old\n")
    old_page("slurm.md", "# Old\nMy note.\n")
    assert folder.keep_up() == ["docs/strategies.md: removed, since the course has moved or dropped this page"]
    assert sorted(path.relative_to(mine).as_posix() for path in mine.rglob("*.md")) == [
        "labs/lab1.md",
        "slurm.md",
        "train/strategies.md",
    ]
    assert folder.keep_up() == []


def test_missing_or_oversized_learner_file_is_refused(folder: LearnerFolder) -> None:
    exercise = find_exercise("1.1", folder.labs)
    step_of(folder).write_bytes(b"x" * (2 << 20))
    with pytest.raises(UsageError, match="expected at most 1048576"):
        folder.files(exercise)
    step_of(folder).unlink()
    with pytest.raises(UsageError, match=r"is missing\n  try: `frog learn reset 1.1`"):
        folder.files(exercise)


def test_damaged_progress_file_error_names_the_place(folder: LearnerFolder) -> None:
    path = folder.path / "progress.json"
    table = json.loads(path.read_text())
    table["exercises"]["lab1/01_first"]["hints"] = 9
    path.write_text(json.dumps(table))
    with pytest.raises(UsageError, match=r"progress.json: \$.exercises\[...\].hints: expected int <= 3"):
        read_progress(folder.path)
    path.write_text("{")
    with pytest.raises(UsageError, match="not valid JSON"):
        read_progress(folder.path)
    path.write_text('{"format": 99}')
    with pytest.raises(UsageError, match="of a newer Frog"):
        read_progress(folder.path)


def test_concurrent_progress_updates_lose_nothing(folder: LearnerFolder) -> None:
    def check_often() -> None:
        for _ in range(20):
            update_progress(folder.path, lambda progress: with_verdict(progress, verdict("lab1/01_first", "rejected")))

    threads = [threading.Thread(target=check_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work = folder.progress().work("lab1/01_first")
    assert (work.checks, work.rejected["unknown"].times) == (60, 60)


def test_checks_are_recorded_in_the_progress(folder: LearnerFolder) -> None:
    progress = folder.progress()
    for found in (
        verdict("lab1/01_first", "broken"),
        verdict("lab1/01_first", "unsolved"),
        verdict("lab1/01_first", "rejected", misconception="sum-is-average"),
        verdict("lab1/01_first", seed=12),
        verdict("lab1/01_first", seed=13),
    ):
        progress = with_verdict(progress, found)
    work = progress.work("lab1/01_first")
    assert work.checks == 4
    assert work.passed is not None
    assert work.passed.seed == 12
    assert work.rejected["sum-is-average"].times == 1


def test_wheel_contains_the_exercises_and_their_pages() -> None:
    root = Path(frog.__file__).parents[2]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shipped = wheel["force-include"]
    assert shipped["labs"] == "frog_labs"
    assert shipped["docs/labs"] == "frog_labs/docs/labs"
    pages = {name: target for name, target in shipped.items() if name.startswith("docs/") and name.endswith(".md")}
    assert pages == {f"docs/{name}": f"frog_labs/docs/{name}" for name in READ}
    assert [name for name in shipped if not (root / name).exists()] == []


def test_every_lab_has_a_page() -> None:
    labs = {exercise.folder.parent.name for exercise in find_exercises()}
    assert {f"labs/{lab}.md" for lab in labs} <= find_pages().keys()


def test_course_folder_contains_every_page_that_exercises_and_labs_refer_to(tmp_path: Path) -> None:
    folder = create_folder(tmp_path / "mine").path
    reads = {exercise.manifest.read for exercise in find_exercises() if exercise.manifest.read}
    reads |= {question.read for pool in read_pools().values() for question in pool}
    assert {read for read in reads if not (folder / read.partition("#")[0]).is_file()} == set()
    assert {read for read in reads if "#" in read and read.partition("#")[2] not in anchors(folder, read)} == set()


def test_course_folder_and_wheel_contain_the_pictures_of_the_labs_pages(tmp_path: Path) -> None:
    docs = create_folder(tmp_path / "mine").path / "docs"
    targets = {
        (page.parent / target).resolve().relative_to(docs).as_posix()
        for page in docs.glob("labs/*.md")
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())
    }
    assert len(targets) > 20
    assert {target for target in targets if not (docs / target).is_file()} == set()
    root = Path(frog.__file__).parents[2]
    shipped = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {f"docs/{target.rpartition('/')[0]}" for target in targets}
    assert {folder: f"frog_labs/{folder}" for folder in folders}.items() <= shipped["force-include"].items()


def anchors(folder: Path, read: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", (folder / read.partition("#")[0]).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_at_most_three_hints_are_recorded(folder: LearnerFolder) -> None:
    progress: Progress = folder.progress()
    for _ in range(5):
        progress = with_hint(progress, "lab1/01_first")
    assert progress.work("lab1/01_first").hints == 3
