"""`frog class`: one page from many exports; it detects edited exports and names unreadable ones."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_course import verdict, write_course

from frog.cli import main
from frog.core.schema import read_typed, write_typed
from frog.learn.classroom import class_page as page
from frog.learn.classroom import table
from frog.learn.classroom.summary import place_of, times
from frog.learn.export import ExerciseRecord, Export
from frog.learn.grader.exercise import find_exercises
from frog.learn.journal import entry_after, first_hash
from frog.learn.progress import (
    DrillResult,
    Guess,
    Progress,
    QuizResult,
    replay,
    with_drill,
    with_guess,
    with_hint,
    with_name,
    with_quiz,
    with_records,
    with_solution,
    with_verdict,
)

FIRST, SECOND, THIRD = "lab1/01_first", "lab1/02_second", "lab2/01_third"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the current directory, and use the small course."""
    course, here = find_exercises(write_course(tmp_path / "labs")), tmp_path / "class"
    here.mkdir()
    monkeypatch.chdir(here)
    for module in (page, table):
        monkeypatch.setattr(module, "find_exercises", lambda: course)
    return here


def guess(value: float) -> Guess:
    about = {"exercise": SECOND, "id": "bytes-sent", "unit": "B", "text": f"{value:g}"}
    return Guess(value=value, at="2026-03-02 09:00:00.000", **about)


def quiz(right: int) -> QuizResult:
    return QuizResult(lab=1, at="2026-03-02 09:30:00.000", seed=3, asked=2, right=right, beliefs=("sums are means",))


def worked(learner: str = "Ada Lovelace", began: str = "2026-03-02 08:00:00.000") -> Progress:
    """Return a progress with a pass, rejections, hints, a solution taken, a prediction, quizzes, drills and a run."""
    progress = Progress(learner=learner, began=began)
    progress = with_guess(with_quiz(progress, quiz(0)), guess(8000.0))
    progress = with_verdict(progress, verdict(FIRST, "unsolved"))
    progress = with_verdict(progress, verdict(FIRST))
    for _ in range(2):
        progress = with_verdict(progress, verdict(SECOND, "rejected", misconception="sum-is-average"))
    for _ in range(4):
        progress = with_hint(progress, SECOND)
    progress = with_solution(progress, SECOND)
    progress = with_verdict(progress, verdict(SECOND, predicted={"bytes-sent": 4000.0}))
    progress = with_quiz(with_solution(progress, THIRD), quiz(2))
    for right in (1, 3):
        progress = with_drill(progress, drill(right))
    return with_records(progress, {"runs/four": "a" * 64})


def drill(right: int) -> DrillResult:
    return DrillResult(at="2026-03-02 09:45:00.000", seed=4, fault="kill rank=2 step=5 phase=reduce", right=right)


def write(progress: Progress, path: Path, exported: str = "2026-03-02 10:00:00.000") -> Path:
    """Write an export as `frog learn export` does."""
    records = (
        ExerciseRecord(id=name, number=name[3] + ".1", title=name, minutes=5, work=work, files={})
        for name, work in progress.exercises.items()
        if work.checks or work.hints or work.gave_up
    )
    found = Export(
        learner=progress.learner,
        named=progress.named,
        began=progress.began,
        exported=exported,
        frog="1",
        passed=2,
        of=3,
        exercises=tuple(records),
        predictions=progress.predictions,
        quizzes=progress.quizzes,
        drills=progress.drills,
        records=progress.records,
        journal=progress.journal,
    )
    write_typed(path, found)
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def rehash(table: dict[str, Any]) -> None:
    """Recompute the hash chain, as a skilled forger would."""
    head, journal = first_hash(table["learner"], table["began"]), []
    for entry in table["journal"]:
        entry["hash"] = head = entry_after(
            head, entry["at"], entry["what"], entry["exercise"], dict(entry["detail"])
        ).hash
        journal.append(entry)
    table["journal"] = journal


def test_replayed_journal_equals_the_progress() -> None:
    progress = worked()
    noted = replay(progress)
    for field in ("exercises", "predictions", "quizzes", "drills", "records"):
        assert getattr(noted, field) == getattr(progress, field) != type(getattr(progress, field))()
    assert progress.predictions[0].measured == 4000
    assert progress.work(SECOND).hints == 3
    assert [entry.what for entry in progress.journal].count("hint") == 3


def test_class_page_summarizes_many_exports(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(worked(), here / "ada.json")
    write(Progress(learner="<b>Eve</b>", began="2026-03-02 08:00:00.001"), here / "eve.json")
    write(with_verdict(Progress(learner="Bob", began="x"), verdict(SECOND, "rejected")), here / "bob.json")
    assert main(["class", "."]) == 0
    assert capsys.readouterr().out == "page: class.html (3 learners)\n"
    html = (here / "class.html").read_text()
    for text in (
        "3 learners",
        "Ada Lovelace",
        "&lt;b&gt;Eve&lt;/b&gt;",
        "the sum over the ranks is the mean",
        "How many bytes does a rank send?",
        "2 times too much",
        "0 of 2",
        "100 %",
        "sums are means: 1",
        "1 of 3 (kill rank=2 step=5 phase=reduce)",
        "3 of 3 (kill rank=2 step=5 phase=reduce)",
        "not passed, 1 checks, 0 hints",
        "whole",
    ):
        assert text in html
    assert "edited</td>" not in html
    assert "http" not in html
    assert "src=" not in html


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda t: t["exercises"][1]["work"].update(hints=0), "1].work.hints: found 0, its journal says 3"),
        (lambda t: t["exercises"][1]["work"].update(gave_up=None), "$.exercises[1].work.gave_up: found null"),
        (lambda t: t["exercises"][0]["work"].update(checks=1), "0].work.checks: found 1, its journal says 2"),
        (lambda t: t["exercises"][1]["work"].update(rejected={}), "$.exercises[1].work.rejected: found {}"),
        (lambda t: t["exercises"][2]["work"].update(passed={"at": "x", "by": "x", "seed": 1}), "2].work.passed"),
        (lambda t: t["exercises"].pop(), "$.exercises: lacks lab2/01_third"),
        (lambda t: t["predictions"][0].update(value=4000.0), "$.predictions[0]: found 8000 (4000, measured 4000.0)"),
        (lambda t: t["quizzes"][0].update(right=2), "$.quizzes[0]: found"),
        (lambda t: t["quizzes"].pop(0), "$.quizzes: found 1, its journal says 2"),
        (lambda t: t["drills"][0].update(right=3), "$.drills[0]: found"),
        (lambda t: t["drills"].pop(), "$.drills: found 1, its journal says 2"),
        (lambda t: t["records"].update({"runs/four": "b" * 64}), "$.records: runs/four: does not match the journal"),
        (lambda t: t["journal"].pop(3), "$.journal[3] ("),
        (lambda t: t["journal"][2].update(what="passed"), "$.journal[2] ("),
        (lambda t: t["journal"][5]["detail"].update(misconception="x"), "$.journal[5] ("),
        (lambda t: t.update(learner="Bob"), "$.journal[0] ("),
        (lambda t: t.update(named="Bob"), "$.named: is not the name that its journal has"),
        (lambda t: (t["journal"][2].update(what="rejected"), rehash(t)), "$.journal: contains an entry that Frog"),
    ],
)  # fmt: skip
def test_edited_export_is_detected_and_located(
    here: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], object], place: str
) -> None:
    path = write(worked(), here / "ada.json")
    changed(path, change)
    assert main(["class", "ada.json"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("edited: ")
    assert place in out
    assert "(edited)" in (here / "class.html").read_text()


def test_broken_journal_is_named_at_its_first_wrong_entry_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(worked(), here / "ada.json")
    changed(path, lambda t: [t["journal"][place].update(what="passed") for place in (2, 5)])
    assert main(["class", "ada.json"]) == 1
    out = capsys.readouterr().out
    assert "$.journal[2] (" in out
    assert "$.journal[5]" not in out


def cut(table: dict[str, Any]) -> None:
    """Remove the solution taken for 2.1 from the fields and from the journal."""
    table["exercises"].pop()
    table["journal"] = [entry for entry in table["journal"] if entry["exercise"] != THIRD]
    rehash(table)


def test_rewritten_journal_is_detected_by_an_earlier_head_or_export(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = worked()
    changed(write(progress, here / "later.json", "2026-03-03"), cut)
    assert main(["class", "later.json"]) == 0

    heads = here / "heads.txt"
    heads.write_text(f"# session B\n{progress.journal[3].hash[:12]} Ada Lovelace\n")
    assert main(["class", "later.json", "--heads", "heads.txt"]) == 0
    heads.write_text(f"{progress.head[:12]} Ada Lovelace\n")
    assert main(["class", "later.json", "--heads", "heads.txt"]) == 1
    assert f"head {progress.head[:12]}, written down earlier" in capsys.readouterr().out

    write(progress, here / "earlier.json", "2026-03-02")
    assert main(["class", "later.json", "earlier.json"]) == 1
    assert "which this journal does not contain" in capsys.readouterr().out


def test_latest_of_two_exports_counts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = worked()
    write(progress, here / "one.json", "2026-03-02")
    write(with_verdict(progress, verdict(THIRD)), here / "two.json", "2026-03-03")
    assert main(["class", "two.json", "one.json", "."]) == 0
    assert "(1 learner)" in capsys.readouterr().out
    assert f"{len(progress.journal) + 1}</td>" in (here / "class.html").read_text()


def test_progress_older_than_the_journal_is_labelled(here: Path) -> None:
    old = read_typed(write(worked(), here / "old.json"), Export)
    kept = Progress(learner="Old", began="x", exercises={one.id: one.work for one in old.exercises})
    write(kept, here / "old.json")
    changed(here / "old.json", lambda table: table.pop("journal"))
    write(with_hint(kept, FIRST), here / "on.json", "2026-03-04")
    assert main(["class", "old.json"]) == 0
    assert ">no journal<" in (here / "class.html").read_text()
    assert [entry.what for entry in with_hint(kept, FIRST).journal] == ["before", "hint"]
    assert main(["class", "old.json", "on.json"]) == 0
    assert ">begun before the journal<" in (here / "class.html").read_text()


def test_unreadable_exports_are_named_and_the_others_make_a_page(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(worked(), here / "ada.json")
    changed(write(worked("Bob"), here / "bob.json"), lambda t: t["exercises"][1]["work"].update(hints=9))
    (here / "torn.json").write_text('{"format": 1, "lear')
    assert main(["class", "ada.json", "bob.json", "torn.json", "none.json"]) == 1
    out = capsys.readouterr().out
    assert "skipped: bob.json: $.exercises[1].work.hints: found 9, expected int <= 3" in out
    assert "torn.json: not valid JSON" in out
    assert "none.json: is missing\n  try: ask the learner for the file again" in out
    html = (here / "class.html").read_text()
    assert "1 learner<" in html
    assert "3 files were skipped" in html


def test_class_page_is_not_written_without_a_readable_export(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["class", "none.json"]) == 2
    assert "none of the files is a readable export of `frog learn export`" in capsys.readouterr().err
    assert not (here / "class.html").exists()


def test_page_with_pseudonyms_contains_no_names(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(write(worked(), here / "ada.json"), lambda table: table["quizzes"].pop())
    write(worked("Bob"), here / "bob.json")
    assert main(["class", "ada.json", "bob.json", "--pseudonyms", "--out", "page.html"]) == 1
    html, out = (here / "page.html").read_text(), capsys.readouterr().out
    assert "Ada" not in html
    assert "ada.json" not in html
    assert "Bob" not in html
    word = next(line for line in out.splitlines() if "Bob" in line).split(" is ")[0]
    assert word in html


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ada 1f0c\n", "heads.txt:1: found 'Ada 1f0c', expected a head and a name"),
        ("1f0c4a52b7de Zoe\n", "heads.txt:1: no report belongs to Zoe"),
        (None, "heads.txt: is missing"),
    ],
)
def test_invalid_heads_file_is_refused_or_reported(
    here: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    write(worked(), here / "ada.json")
    if text is not None:
        (here / "heads.txt").write_text(text)
    assert main(["class", "ada.json", "--heads", "heads.txt"]) in {1, 2}
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_prediction_is_drawn_on_a_clipped_log_scale() -> None:
    assert [place_of(times(value, 1.0)) for value in (1.0, 16.0, 1e300, 0.5, -3.0)] == [100, 190, 190, 77.5, 10]
    assert times(5.0, 0.0) == 16
    assert times(1e308, 1e-308) == 16


def test_circular_link_is_reported_as_unreadable(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "loop.json").symlink_to("loop.json")
    assert main(["class", "loop.json"]) != 0
    captured = capsys.readouterr()
    assert "loop.json: cannot be read" in captured.out + captured.err


def test_long_lists_of_problems_are_shortened(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(worked(), Path("ada.json"))
    lines = [f"0123456789ab learner {number}\n" for number in range(3000)] + ["0123456789ab Ada Lovelace\n"] * 3000
    Path("heads.txt").write_text("".join(lines))
    assert main(["class", "ada.json", "--heads", "heads.txt"]) == 1
    out = capsys.readouterr().out
    assert "edited: Ada Lovelace: 2992 more places, listed on the page" in out
    assert "... and 2970 more skipped files" in out
    assert len(out) < 10_000


def test_oversized_export_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(worked(), Path("ada.json"))
    path.write_text(path.read_text() + " " * (4 << 20))
    assert main(["class", "ada.json"]) == 2
    assert "expected at most 4194304" in capsys.readouterr().out


def test_learners_with_the_same_name_get_distinct_labels(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progresses = [worked("Ada", began=f"2026-03-02 08:00:00.00{n}") for n in range(3)]
    for n, progress in enumerate(progresses):
        write(progress, here / f"{n}.json")
    heads = "".join(f"{progress.head[:12]} Ada\n" for progress in progresses)
    (here / "heads.txt").write_text(heads)
    assert main(["class", "0.json", "1.json", "2.json", "--heads", "heads.txt", "--csv", "class.csv"]) == 0
    assert "table: class.csv (3 learners)" in capsys.readouterr().out
    names = {f"Ada ({first_hash('Ada', progress.began)[:6]})" for progress in progresses}
    html = (here / "class.html").read_text()
    assert len(names) == 3
    assert [name for name in names if html.count(f">{name}<") < 3] == []  # grid, quizzes, drills
    assert {row["name"] for row in rows(here / "class.csv")} == names


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def test_csv_table_has_one_line_per_learner(here: Path) -> None:
    write(with_name(worked(), "Ada King"), here / "ada.json")
    write(Progress(learner="bob", began="x"), here / "bob.json")
    assert main(["class", ".", "--csv", "class.csv"]) == 0
    ada, bob = rows(here / "class.csv")
    assert {name: cell for name, cell in ada.items() if name not in ("head", "exported_utc")} == {
        "name": "Ada King",
        "labs_passed": "1",
        "exercises_passed": "2",
        "exercises": "3",
        "lab1_exercises_passed": "2",
        "lab2_exercises_passed": "0",
        "lab1_quiz_first_percent": "0",
        "lab1_quiz_last_percent": "100",
        "lab2_quiz_first_percent": "",
        "lab2_quiz_last_percent": "",
        "mixed_quiz_first_percent": "",
        "mixed_quiz_last_percent": "",
        "drills": "2",
        "best_drill_right_of_3": "3",
        "hints": "3",
        "solutions": "2",
        "journal": "whole",
    }
    assert ada.keys() == bob.keys()
    assert (bob["name"], bob["exercises_passed"], bob["drills"], bob["journal"]) == ("bob", "0", "0", "whole")


def test_csv_table_follows_rfc_4180_and_escapes_formulas(here: Path) -> None:
    names = {
        '=HYPERLINK("http://x","y")': '\'=HYPERLINK("http://x","y")',
        "+1": "'+1",
        "-1+2": "'-1+2",
        "@SUM(A1)": "'@SUM(A1)",
        "\t=1": "'=1",
        " =1": "'=1",
        "＝1": "'＝1",  # noqa: RUF001
        "\u200e=1": "'=1",
        'Smith, "Bo"\r\nB': 'Smith, "Bo" B',
        "Zoë O'Neil-Brown": "Zoë O'Neil-Brown",
    }
    for number, name in enumerate(names):
        write(Progress(learner=name, began="x"), here / f"{number}.json")
    assert main(["class", ".", "--csv", "class.csv"]) == 0
    assert {row["name"] for row in rows(here / "class.csv")} == set(names.values())
    data = (here / "class.csv").read_bytes()
    assert data.count(b"\r\n") == data.count(b"\n") == 1 + len(names)
    assert b'"\'=HYPERLINK(""http://x"",""y"")",' in data
    assert b'"Smith, ""Bo"" B",' in data


def test_csv_table_with_pseudonyms_contains_no_names(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(write(worked(), here / "ada.json"), lambda table: table["quizzes"].pop())
    assert main(["class", "ada.json", "--pseudonyms", "--csv", "class.csv"]) == 1
    (row,) = rows(here / "class.csv")
    assert row["name"] == f"learner {first_hash('Ada Lovelace', '2026-03-02 08:00:00.000')[:6]}"
    assert row["journal"] == "edited"
    assert main(["class", "ada.json", "--csv", "ada.json/x"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_quiz_shows_the_share_of_right_answers_in_its_first_and_last_round() -> None:
    def rounds(*figures: tuple[int, int]) -> list[QuizResult]:
        return [QuizResult(lab=1, at="", seed=1, asked=asked, right=right) for asked, right in figures]

    assert dict(table._quiz("lab1", [])) == {"lab1_quiz_first_percent": "", "lab1_quiz_last_percent": ""}
    for figures, first, last in (([(8, 1), (8, 2), (3, 2)], 12, 67), ([(1, 1)], 100, 100), ([(0, 0)], 0, 0)):
        assert [*dict(table._quiz("lab1", rounds(*figures))).values()] == [first, last]
