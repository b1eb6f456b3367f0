"""`frog learn` and its commands, on a course of three exercises with a grader that returns chosen verdicts."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from small_course import SOLUTION, STUB, FakeGrader, write_course

from frog.cli import main
from frog.core.errors import UsageError
from frog.learn import actions
from frog.learn.export import Export
from frog.learn.folder import create_folder, open_folder
from frog.learn.grader.exercise import fast_path, find_exercise, find_exercises
from frog.learn.progress import QuizResult, read_progress, update_progress, with_quiz


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the current directory, and use the small course."""
    labs, here = write_course(tmp_path / "labs"), tmp_path / "mine"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(actions, "open_folder", partial(open_folder, labs=labs))
    monkeypatch.setattr(actions, "create_folder", partial(create_folder, labs=labs))
    monkeypatch.setitem(sys.modules, "frog.learn.grader.client", SimpleNamespace(Grader=FakeGrader))
    return here


@pytest.fixture
def frog(here: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `frog learn` with these words; return its output on both streams."""

    def run(*words: str, code: int = 0) -> str:
        assert main(["learn", *words]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    return run


def step(here: Path, name: str = "lab1/01_first") -> Path:
    return here / "exercises" / name / "step.py"


def test_starting_the_course_prints_each_next_step(frog: Any, here: Path) -> None:
    first = frog()
    assert f"will be {here}:" in first
    assert "3 exercises" in first
    assert "next: frog doctor\n" in first
    assert "read: docs/labs/lab1.md, the page of the first lab\nthen: frog learn start," in first
    lines = frog().splitlines()
    assert len(lines) == 5
    assert "0/3 exercises passed" in lines[0]
    assert lines[1] == "lab 1: 0 of 2 passed; page: docs/labs/lab1.md; quiz: frog quiz 1"
    assert "1.1: the first (5 min)" in lines[2]
    assert lines[4] == "next: frog learn start (ten minutes with two ranks); then: frog learn watch"


def test_learn_refuses_to_start_in_a_folder_with_other_files(frog: Any, here: Path) -> None:
    (here / "thesis.tex").touch()
    assert "try: frog learn init ~/frog-course" in frog(code=2)
    assert "not inside a course folder" in frog("list", code=2)
    assert [path.name for path in here.iterdir()] == ["thesis.tex"]


def test_init_of_another_folder_prints_the_cd_command(frog: Any, here: Path) -> None:
    assert "next: cd sub && frog doctor" in frog("init", "sub")
    assert (here / "sub" / "exercises").is_dir()


def test_learner_name_is_set_by_init_and_changed_by_name(frog: Any, here: Path) -> None:
    assert "page: Ada Lovelace." in frog("init", "sub", "--name", "  Ada   Lovelace ")
    for bad in ("", " ", "a" * 81, "two\x00"):
        assert "is not a valid name" in frog("init", "other", "--name", bad, code=2)
    assert not (here / "other").exists()


def test_changed_name_is_exported_with_a_valid_journal(
    frog: Any, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frog()
    before = read_progress(here).learner
    assert frog("name") == f"{before}\n"
    assert frog("name", "Grace", "Hopper") == "Grace Hopper\n"
    frog("name", "Grace Hopper")
    assert [entry.what for entry in read_progress(here).journal] == ["name"]
    head = re.search(r"head: (\w+) Grace Hopper \(1 entries\)", frog("export"))
    assert head is not None
    (here / "heads.txt").write_text(f"{head[1]} Grace Hopper\n{read_progress(here).head[:8]} {before}\n")
    assert main(["class", "frog-learn-grace-hopper.json", "--heads", "heads.txt"]) == 0
    page = (here / "class.html").read_text()
    assert "Grace Hopper" in page
    assert ">whole<" in page


def test_init_asks_for_the_name_at_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [Path(sys.executable).parent / "frog", "learn", "init", tmp_path / "mine"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as init:
        os.close(theirs)
        os.write(ours, f"{'a' * 81}\nZoë B.\n".encode())  # too long, so it asks again
        printed = b""
        while b"then: frog learn" not in printed:
            printed += os.read(ours, 1 << 16)
        init.wait()
    os.close(ours)
    assert printed.count(b"Your name, as your instructor will see it (Enter: ") == 2
    assert read_progress(tmp_path / "mine").name == "Zoë B."


def test_check_leads_from_unsolved_through_passed_to_the_next_exercise(frog: Any, here: Path) -> None:
    frog()
    assert "lab 1.1  the first: not solved yet" in frog("check", code=1)
    step(here).write_text("def step(): return 2\n")
    assert "lab 1.1  the first: not passed" in frog("check", code=1)
    step(here).write_text(SOLUTION)
    passed = frog("check")
    assert "lab 1.1  the first: passed" in passed
    assert "next: 1.2  the second: exercises/lab1/02_second/README.md" in passed
    assert "page of lab" not in passed
    assert "✓ 1.1" in frog("list")
    assert "> 1.2" in frog("list")
    assert "lab 1.2  the second: not solved yet" in frog("check", code=1)


def test_exercise_can_be_named_by_id_number_name_or_folder(
    frog: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frog()
    for name in ("2.1", "third", "lab2/01_third", "exercises/lab2/01_third", "exercises/lab2/01_third/step.py"):
        assert "lab 2.1" in frog("check", name, code=1)
    monkeypatch.chdir(step(here, "lab1/02_second").parent)
    assert "lab 1.2" in frog("check", code=1)
    assert "one of: lab1/01_first" in frog("check", "2.9", code=2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("3.08", "did you mean 3.8, lab3/08_jobs_that_end?"),
        ("lab3/8", "did you mean 3.8, lab3/08_jobs_that_end?"),
        ("own_fdsp", "did you mean own_fsdp?"),
        ("6.7", "one of: lab6/01_frames, lab6/02_rendezvous"),
        ("8.1", "numbers go from 0.1 to 6.6; a name is, for example, lab0/01_one_formula"),
        ("xyz", "numbers go from 0.1 to 6.6; a name is, for example, lab0/01_one_formula"),
    ],
)
def test_wrong_name_of_an_exercise_suggests_the_meant_one(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_exercise(name)
    assert caught.value.what == f"{name}: no such exercise"
    assert (caught.value.hint or "").startswith(words)


def test_fast_path_is_about_six_hours_and_the_page_lists_it(frog: Any, here: Path) -> None:
    frog()
    assert frog("list", "--fast") == "This course has no fast path.\n"
    fast = fast_path()
    minutes = sum(exercise.manifest.minutes for exercise in fast)
    assert 330 <= minutes <= 390
    page = (Path(fast_path.__code__.co_filename).parents[4] / "docs" / "learn" / "course.md").read_text()
    rows = re.findall(
        r"^\| \[\d\]\(\S+\) \| ([\d., ]+) \| (\d+) \|", page.partition("### The fast path")[2], re.MULTILINE
    )
    assert [number for numbers, _ in rows for number in numbers.split(", ")] == [exercise.number for exercise in fast]
    assert sum(int(total) for _, total in rows) == minutes
    assert f"{sum(exercise.manifest.minutes for exercise in find_exercises()) / 60:.0f} hours by the minutes" in page


def test_list_of_the_fast_path_names_its_next_exercise(frog: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frog()
    monkeypatch.setattr(actions, "fast_path", lambda labs: [find_exercise(name, labs) for name in ("1.1", "2.1")])
    step(here).write_text(SOLUTION)
    assert frog("list", "--fast").splitlines()[-1] == "next: frog learn watch 1.1"
    frog("check", "1.1")
    lines = frog("list", "--fast").splitlines()
    assert lines[-1] == "next: frog learn watch 2.1"
    assert [line.split()[:2] for line in lines[1:3]] == [["✓", "1.1"], [">", "2.1"]]
    step(here, "lab2/01_third").write_text(SOLUTION)
    frog("check", "2.1")
    assert frog("list", "--fast").splitlines()[-1] == "You passed the fast path: frog learn list"


def test_check_with_a_seed_is_not_recorded(frog: Any, here: Path) -> None:
    frog()
    step(here).write_text(SOLUTION)
    assert "seed 99" in frog("check", "--seed", "99")
    assert read_progress(here).work("lab1/01_first").passed is None


def test_measured_number_is_hidden_until_it_is_predicted(frog: Any, here: Path) -> None:
    frog()
    step(here, "lab1/02_second").write_text(SOLUTION + '# {"predicted": {"bytes-sent": 3985152}, "notes": ["3.99 MB"]}')
    before = frog("check", "1.2") + frog("check", "1.2", "--json")
    assert "3.99" not in before
    assert "3985152" not in before
    assert "frog learn predict bytes-sent VALUE\n    How many bytes does a rank send?" in before
    assert read_progress(here).predictions == ()
    assert "1.2  bytes-sent: How many" in frog("predict")
    assert "predicted 5.3 MB; the next passing check" in frog("predict", "bytes-sent", "5.3", "MB")
    second = step(here, "lab1/02_second")
    right = second.read_text()
    second.write_text('# {"predicted": {"bytes-sent": 1}}')
    frog("check", "1.2", code=1)  # the number of a wrong solution is not a measurement
    second.write_text(right)
    assert "predicted 5.3 MB, measured 3.99 MB (33 % off)" in frog("check", "1.2")
    assert frog("predict", "bytes-sent", "3.9e6").count("predicted 3.9 MB") == 1
    assert "(2.1 % off, close enough)" in frog("check", "1.2")
    assert json.loads(frog("check", "1.2", "--json"))["predicted"] == {"bytes-sent": 3985152}
    assert [guess.measured for guess in read_progress(here).predictions] == [3985152, 3985152]


def test_predict_refuses_unknown_ids_and_wrong_units(frog: Any, here: Path) -> None:
    frog()
    assert "1.1 asks for no prediction" in frog("predict")
    assert "no exercise asks for a prediction with this name\n  try: 1.1, the current" in frog(
        "predict", "bits", "3", code=2
    )
    assert "found the unit Mb, expected B" in frog("predict", "bytes-sent", "3Mb", code=2)
    assert "not predicted yet: frog learn predict bytes-sent VALUE" in frog("predict", "bytes-sent")


def test_wrong_prediction_names_its_misconception(frog: Any, here: Path) -> None:
    frog()
    manifest = here.parent / "labs/lab1/02_second/manifest.toml"
    beliefs = '[[predict.beliefs]]\nvalue = 50\nbelief = "half"\n[[predict.beliefs]]\nfactor = 8\nbelief = "bits"\n'
    beliefs += '[[predict.beliefs]]\nvalue = 99\nbelief = "near enough"\n'
    manifest.write_text(manifest.read_text().replace("[[misconceptions]]", f"{beliefs}[[misconceptions]]"))
    step(here, "lab1/02_second").write_text(SOLUTION + '# {"predicted": {"bytes-sent": 100}}')
    for value, belief in (("50", "half"), ("802", "bits"), ("99", None), ("300", None)):
        assert "misconception" not in frog("predict", "bytes-sent", value)
        for said in (frog("check", "1.2"), frog("predict", "bytes-sent")):
            assert " ".join(said.split()).partition("misconception behind it: ")[2].startswith(belief or "")
            assert ("misconception" in said) == bool(belief)


def test_prediction_belief_needs_either_a_value_or_a_factor(frog: Any, here: Path) -> None:
    frog()
    manifest = here.parent / "labs/lab1/02_second/manifest.toml"
    good = manifest.read_text()
    for fields in ("", "value = 1\nfactor = 2\n"):
        manifest.write_text(good.replace("[[misc", f'[[predict.beliefs]]\nbelief = "b"\n{fields}[[misc'))
        assert "expected either a value or a factor" in frog("list", code=2)


def test_predicting_does_not_change_the_current_exercise(frog: Any) -> None:
    frog()
    frog("check", "2.1", code=1)
    frog("predict", "bytes-sent", "3MB")
    assert "exercise 2.1" in frog()
    frog("hint", "1.2")
    assert "exercise 1.2" in frog()


def test_long_challenge_title_is_shortened_next_to_its_pass_date(frog: Any, here: Path) -> None:
    frog()
    manifest = here.parent / "labs/lab2/01_third/manifest.toml"
    title = f"challenge: {'a training run ' * 5}"
    manifest.write_text(manifest.read_text().replace('"the third"', f'"{title}"\nkind = "challenge"'))
    assert frog("list").count("challenge") == 1
    step(here, "lab2/01_third").write_text(SOLUTION)
    frog("check", "2.1")
    row = next(line for line in frog("list").splitlines() if "2.1" in line)
    assert re.fullmatch(r"✓ 2\.1   challenge: a training .*\.\.\. +passed \d{4}-\d\d-\d\d", row)
    assert len(row) <= 80
    frog("progress")
    assert (here / "progress.html").read_text().count("challenge") == 1


def test_passed_lab_offers_its_quiz_until_taken(frog: Any, here: Path) -> None:
    frog()
    for exercise, said in (("lab1/01_first", False), ("lab1/02_second", True)):
        step(here, exercise).write_text(SOLUTION)
        assert ("You passed lab 1: frog quiz 1" in frog("check", exercise)) is said
    assert "lab 2: 0 of 1 passed; you passed lab 1, now: frog quiz 1" in frog()
    quiz = QuizResult(lab=1, at="2026-01-01 10:00:00.000", seed=1, asked=9, right=7)
    update_progress(here, lambda progress: with_quiz(progress, quiz))
    assert "lab 2: 0 of 1 passed; quiz: frog quiz 2" in frog()
    assert "frog quiz" not in frog("check", "1.2")


def test_hint_begins_with_the_question_of_the_last_rejected_check(frog: Any, here: Path) -> None:
    frog()
    second = step(here, "lab1/02_second")
    second.write_text('def step(): return 2\n# {"misconception": "sum-is-average"}')
    frog("check", "1.2", code=1)
    asked = "your last check: What turns a sum into a mean?\n"
    assert frog("hint", "1.2") == f"{asked}hint 1 of 3: a question\n"
    assert "your last check" not in frog("hint", "1.1")
    second.write_text(SOLUTION)
    frog("check", "1.2")
    assert frog("hint", "1.2") == "hint 1 of 3: a question\nhint 2 of 3: a place\n"


def test_exercise_that_comes_after_a_later_lab_is_offered_there(frog: Any, here: Path) -> None:
    labs = here.parent / "labs"
    manifest = labs / "lab1" / "01_first" / "manifest.toml"
    manifest.write_text("after = 2\n" + manifest.read_text())
    (labs / "docs" / "labs" / "lab2.md").write_text("# Lab 2\n")
    frog()
    for name, following in (("lab1/02_second", "2.1"), ("lab2/01_third", "1.1")):
        step(here, name).write_text(SOLUTION)
        said = frog("check", name)
        assert f"next: {following} " in said
        starts_a_lab = name == "lab1/02_second"
        assert ("page of lab 2: docs/labs/lab2.md" in said) == starts_a_lab
        assert ("frog quiz 1" in said) == starts_a_lab  # a quiz does not wait for an exercise that is offered later


def test_hints_are_shown_one_by_one(frog: Any) -> None:
    frog()
    assert frog("hint") == "hint 1 of 3: a question\n"
    assert frog("hint") == "hint 1 of 3: a question\nhint 2 of 3: a place\n"
    assert frog("hint", "1.2") == "hint 1 of 3: a question\n"


def test_solution_before_a_pass_needs_give_up_and_is_recorded(frog: Any, here: Path) -> None:
    frog()
    assert "try: frog learn hint 1.1; or frog learn solution 1.1 --give-up" in frog("solution", code=2)
    assert SOLUTION in frog("solution", "--give-up")
    assert read_progress(here).work("lab1/01_first").gave_up is not None
    step(here, "lab2/01_third").write_text(SOLUTION)
    frog("check", "2.1")
    assert SOLUTION in frog("solution")
    assert read_progress(here).work("lab2/01_third").gave_up is None


def test_reset_prints_the_backup_folder(frog: Any, here: Path) -> None:
    frog()
    step(here).write_text("mine\n")
    kept = frog("reset").split("your files were moved to ")[1].strip()
    assert (here / kept / "step.py").read_text() == "mine\n"
    assert step(here).read_text() == STUB
    assert "your files were moved" not in frog("reset")


def test_every_command_reports_course_updates(frog: Any, here: Path) -> None:
    frog()
    labs = here.parent / "labs"
    (labs / "lab1" / "01_first" / "README.md").write_text("newer\n")
    assert "exercises/lab1/01_first/README.md: updated to the course's newer version" in frog("list")
    assert "newer" not in frog("list")


def test_progress_page_and_export_contain_all_work(frog: Any, here: Path) -> None:
    frog()
    second = step(here, "lab1/02_second")
    second.write_text('# {"misconception": "sum-is-average"}')
    frog("check", "1.2", code=1)
    second.write_text(SOLUTION + '# {"predicted": {"bytes-sent": 100}}')
    frog("predict", "bytes-sent", "400")
    frog("hint", "1.2")
    frog("check", "1.2")
    frog("solution", "1.1", "--give-up")
    quiz = QuizResult(lab=1, at="2026-01-01 10:00:00.000", seed=1, asked=3, right=2)
    update_progress(here, lambda progress: with_quiz(progress, quiz))
    text = frog("progress")
    page = (here / "progress.html").read_text()
    for said in ("4 times the measured value", "the sum over the ranks is the mean"):
        assert said in text
        assert said in page
    assert "lab 1: 2 of 3" in text
    assert page.count("<circle") == 1
    assert "http" not in page
    progress = read_progress(here)
    head = f"head: {progress.head[:12]} {progress.learner} ({len(progress.journal)} entries)"
    assert head in text
    assert frog("export", "export.json") == f"written: export.json\n{head}\n"
    found = msgspec.json.decode((here / "export.json").read_bytes(), type=Export)
    by_id = {record.id: record for record in found.exercises}
    assert by_id.keys() == {"lab1/01_first", "lab1/02_second"}
    work = by_id["lab1/02_second"].work
    assert (work.checks, work.hints, work.rejected["sum-is-average"].times) == (2, 1, 1)
    assert work.passed is not None
    assert work.passed.by.startswith("frog ")
    assert by_id["lab1/02_second"].files["step.py"].startswith(SOLUTION)
    assert found.predictions[0].measured == 100
    assert found.quizzes == (quiz,)
    assert (found.passed, found.of) == (1, 3)


def test_export_contains_hashes_of_run_records(frog: Any, here: Path) -> None:
    frog()
    for folder in (here, here.parent):
        (folder / "runs" / "four").mkdir(parents=True)
        (folder / "runs" / "four" / "record.json").write_text(folder.name)
        (folder / "runs" / "killed").mkdir()
    expected = {
        "runs/four": hashlib.sha256(here.name.encode()).hexdigest(),
        "../runs/four": hashlib.sha256(here.parent.name.encode()).hexdigest(),
    }
    first, again = frog("export", "export.json"), frog("export", "export.json")
    assert msgspec.json.decode((here / "export.json").read_bytes(), type=Export).records == expected
    assert first == again, "the journal contains an unchanged record once"
    (here / "runs" / "four" / "record.json").write_text("it continued")
    assert frog("export", "export.json") != again
    assert [entry.what for entry in read_progress(here).journal] == ["record"] * 3


def test_learn_commands_report_a_completed_course(frog: Any, here: Path) -> None:
    frog()
    for name in ("lab1/01_first", "lab1/02_second", "lab2/01_third"):
        step(here, name).write_text(SOLUTION)
        last = frog("check", name)
    assert "You passed every exercise" in last
    assert "You passed every exercise." in frog()


def test_system_errors_show_no_traceback(frog: Any, here: Path) -> None:
    frog()
    (here / "backups").write_text("in the way")
    step(here).write_text("mine")
    assert "backups" in frog("reset", code=2)
    assert step(here).read_text() == "mine"


def test_check_prints_on_a_terminal_without_unicode(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["learn"]) == 0
    step(here).write_text(SOLUTION)
    assert main(["learn", "check"]) == 0
    out.flush()
    assert b"? lab 1.1  the first: passed" in out.buffer.getvalue()  # type: ignore[attr-defined]
