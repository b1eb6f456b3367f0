"""The events and the screen of `frog learn watch`, without terminal and processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from harness import LIMIT_S
from small_course import SOLUTION, STUB, FakeGrader, write_course

from frog.core.errors import LaunchError
from frog.learn.folder import LearnerFolder, create_folder
from frog.learn.grader.exercise import Exercise, find_exercise, find_exercises
from frog.learn.grader.verdict import Verdict
from frog.learn.screen import screen_lines
from frog.learn.session import Session
from frog.learn.terminal import Event
from frog.learn.text import Style


class Watch:
    """A session that receives its events one by one."""

    def __init__(self, folder: LearnerFolder, grader: type[FakeGrader] = FakeGrader) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.session = Session(folder, find_exercise("1.1", folder.labs), grader, self.events)

    def write(self, text: str) -> None:
        (self.session.folder.place(self.session.exercise) / "step.py").write_text(text)

    def look(self) -> None:
        self.session.handle(("look", None))

    def settle(self) -> str:
        """Wait until all checks have ended; return the screen's content."""
        while self.session.is_checking:
            self.session.handle(self.events.get(timeout=LIMIT_S))
        return self.screen()

    def press(self, *keys: str) -> str:
        for key in keys:
            self.session.handle(("key", key))
        return self.settle()

    def screen(self, columns: int = 80, rows: int = 24) -> str:
        lines = screen_lines(self.session, Style(columns), rows)
        assert len(lines) == rows
        assert max(map(len, lines)) <= columns
        return "\n".join(lines)


@pytest.fixture
def folder(tmp_path: Path) -> LearnerFolder:
    return create_folder(tmp_path / "mine", write_course(tmp_path / "labs"))


@pytest.fixture
def watch(folder: LearnerFolder) -> Iterator[Watch]:
    found = Watch(folder)
    found.look()
    found.settle()
    yield found
    found.session.close()


def test_watch_checks_a_saved_file_once(watch: Watch) -> None:
    assert "1.1  the first: not solved yet" in watch.screen()
    watch.look()
    assert not watch.session.is_checking
    watch.write(SOLUTION)
    watch.look()
    assert watch.session.is_checking
    assert "-- checking ..." in watch.screen()
    screen = watch.settle()
    assert "1.1  the first: passed" in screen
    assert "1/3" in screen.splitlines()[0]
    assert "-- passed: press n --" in screen
    watch.write("return 2")
    watch.look()
    assert "-- checked " in watch.settle()


def test_save_during_a_check_triggers_another_check(watch: Watch) -> None:
    watch.write("return 2")
    watch.look()
    watch.write(SOLUTION)
    watch.look()
    assert "passed" in watch.settle()
    assert watch.session.folder.progress().work("lab1/01_first").checks == 3


def test_watch_names_an_empty_function(watch: Watch) -> None:
    watch.write('def step() -> int:\n    pass\n# {"belief": "a belief"}')
    watch.look()
    screen = watch.settle()
    assert "step is still empty" in screen
    assert "a belief" not in screen


def test_enter_repeats_the_check(watch: Watch) -> None:
    watch.press("\n")
    assert watch.session.folder.progress().work("lab1/01_first").checks == 2


def test_next_skips_passed_exercises_and_wraps_around(watch: Watch) -> None:
    assert "lab 1.2  the second" in watch.press("n")
    assert watch.session.folder.progress().current == "lab1/02_second"
    assert "lab 2.1  the third" in watch.press("n")
    assert "lab 1.1  the first" in watch.press("n")
    watch.write(SOLUTION)
    assert "passed" in watch.press("\n")
    assert "lab 1.2  the second" in watch.press("n")
    assert "lab 2.1  the third" in watch.press("n")
    assert "lab 1.2  the second" in watch.press("n")


def test_next_during_a_check_hides_the_previous_exercises_verdict(watch: Watch) -> None:
    watch.write(SOLUTION)
    watch.look()
    watch.session.handle(("key", "n"))
    watch.session.handle(watch.events.get(timeout=LIMIT_S))
    assert ": passed" not in watch.screen()
    assert "lab 1.2  the second: not solved yet" in watch.settle()
    assert watch.session.folder.progress().work("lab1/01_first").passed is not None


def test_watch_keeps_hints_on_the_screen(watch: Watch) -> None:
    assert "hint 1 of 3: a question" in watch.press("h")
    watch.write("return 2")
    watch.look()
    screen = watch.settle()
    assert "hint 1 of 3: a question" in screen
    assert "not passed" in screen
    assert "hint 3 of 3: nearly there" in watch.press("h", "h", "h")
    assert "hint" not in watch.press("n").splitlines()[3]


def test_list_key_toggles_the_exercise_list(watch: Watch) -> None:
    screen = watch.press("l")
    assert "> 1.1" in screen
    assert "  2.1" in screen
    assert "not solved yet" in watch.press("l")
    watch.press("l")
    assert "not solved yet" in watch.press("\x1b")


def test_whole_screens_of_the_list_and_the_exercise(watch: Watch) -> None:
    """Every line of a small terminal, after each key; only times are left out."""

    def after(*keys: str) -> list[str]:
        watch.press(*keys)
        screen = re.sub(r"checked [\d:]{8} UTC|[\d.]+ s$", "TIME", watch.screen(rows=12), flags=re.MULTILINE)
        return [re.sub(r"-{3,}$", "--", re.sub(" {3,}", "  ", line)) for line in screen.splitlines()]

    rule = "-- page: docs/labs/lab1.md --"
    head = ["lab 1.1  the first  [--------------------] 0/3", "exercises/lab1/01_first/step.py  5 min"]
    rows = ["lab 1  [----------] 0/2", "  1.1  the first  1 check", "  1.2  the second", "lab 2  [----------] 0/1"]
    rows += ["  2.1  the third", "", ""]

    def listed(chosen: int, typed: str = "--") -> list[str]:
        marked = [f"> {row[2:]}" if place == chosen else row for place, row in enumerate(rows)]
        keys = "arrows or a number: choose  Enter: open  l back  q quit"
        return [*head, "-- exercises --", *marked, typed, keys]

    def opened(keys: str, status: str = "TIME", other: str = "verdict") -> list[str]:
        keys = keys or f"n next  h hint  l list  r reset  Tab {other}  Enter again  q quit"
        return [*head, rule, *[""] * 6, f"-- {status} --", "· lab 1.1  the first: not solved yet  TIME", keys]

    assert after() == opened("")
    assert after("l") == listed(1)
    assert after("down") == listed(2)
    assert after("down") == listed(4)
    assert after("up") == listed(2)
    assert after("2") == listed(4, "-- go to 2_ --")
    assert after("l") == opened("")
    assert after("\t") == opened("", other="text")
    assert after("\t") == opened("")
    assert after("r") == opened("restore the original files? yours move to backups/. y: yes, other keys: no")
    assert after("x") == opened("", status="nothing was reset")


def test_long_exercise_list_opens_at_the_current_exercise(watch: Watch) -> None:
    watch.press("n", "n", "l")
    assert "> 2.1" in watch.screen(rows=8)
    assert "1.1 " not in watch.screen(rows=8)
    watch.press("up", "up")
    assert "> 1.1 " in watch.screen(rows=8)


def test_arrows_choose_an_exercise_in_the_list(watch: Watch) -> None:
    screen = watch.press("l", "down", "down", "down", "down")
    assert "> 2.1" in screen
    assert "> 1.1" not in screen
    assert watch.session.exercise.number == "1.1"
    assert "lab 2.1  the third: not solved yet" in watch.press("up", "down", "\n")
    assert watch.session.folder.progress().current == "lab2/01_third"


def test_typed_number_chooses_an_exercise_in_the_list(watch: Watch) -> None:
    assert "go to 1.2_" in watch.press("l", "1", ".", "2")
    assert "> 1.2" in watch.screen()
    assert "lab 1.2  the second: not solved yet" in watch.press("\r")
    assert "> 2.1" in watch.press("l", "9", "1", "2")
    assert "go to 2_" in watch.screen()
    assert "lab 2.1  the third" in watch.press("\x7f", "\n")


def test_exercise_list_marks_passed_exercises(watch: Watch) -> None:
    watch.write(SOLUTION)
    watch.look()
    watch.settle()
    assert "✓ 1.1" in watch.press("l", "down")


def test_watch_shows_and_scrolls_the_readme_above_the_verdict(watch: Watch) -> None:
    readme = watch.session.exercise.folder / "README.md"
    readme.write_text("# title\n\n" + "\n\n".join(f"**Line {number}.** of *the* page" for number in range(40)))
    screen = watch.screen()
    assert "Line 0. of the page" in screen
    assert "not solved yet" in screen
    assert "lines 1 to 18 of 79, space: more" in screen
    assert "Line 0. of the page" not in watch.press("down")
    assert "Line 9. of the page" in watch.press("up", " ")
    assert "not solved yet" in watch.screen()
    for _ in range(3):
        screen = watch.press(" ")
    assert "Line 39. of the page" in screen
    assert "Line 0. of the page" in watch.press(" ")


def test_long_verdict_gets_more_rows_but_leaves_some_to_the_readme(watch: Watch) -> None:
    readme = watch.session.exercise.folder / "README.md"
    readme.write_text("# title\n\n" + "\n\n".join(f"Line {number}" for number in range(40)))
    watch.write('# {"observed": "' + "\\n".join(f"word{n}" for n in range(30)) + '"}')
    watch.look()
    screen = watch.settle()
    assert "word0" in screen
    assert "word10" in screen
    assert "Line 1" in screen
    assert "space: more" in screen
    assert "Tab: more" in screen
    switched = watch.press("\t")
    assert "Line 5" in switched
    assert "word0" in switched
    assert "word10" not in switched


def test_reset_key_asks_for_confirmation(watch: Watch) -> None:
    watch.write("mine")
    watch.look()
    watch.settle()
    place = watch.session.folder.place(watch.session.exercise)
    assert "y: yes" in watch.press("r")
    assert "nothing was reset" in watch.press("q")
    assert (place / "step.py").read_text() == "mine"
    assert not watch.session.is_over
    assert "reset; your files are in backups/lab1/01_first/" in watch.press("r", "y")
    assert (place / "step.py").read_text() == STUB
    assert "not solved yet" in watch.screen()


def test_prediction_is_entered_in_the_watch(watch: Watch) -> None:
    assert "asks for no prediction" in watch.press("p")
    watch.press("n")
    watch.write(SOLUTION + '# {"predicted": {"bytes-sent": 3985152}}')
    watch.look()
    assert "Predict first; frog learn check 1.2 then" in watch.settle()
    rows = watch.press("p", *"5.3 MBB", "\x7f").splitlines()
    below = next(row for row, line in enumerate(rows) if line.startswith("-- passed: press p to predict, then n"))
    assert rows[below + 1] == "How many bytes does a rank send?"
    assert "predicted 5.3 MB, measured 3.99 MB (33 % off)" in watch.press("\n")
    assert "found the unit apples" in watch.press("p", *"5 apples", "\n")
    watch.press("p", "5", "\x1b")
    assert len(watch.session.folder.progress().predictions) == 1


def test_watch_reports_a_missing_file(watch: Watch) -> None:
    path = watch.session.folder.place(watch.session.exercise) / "step.py"
    path.unlink()
    watch.look()
    assert "is missing" in watch.settle().replace("\n", " ")
    assert "frog learn reset 1.1" in watch.screen()
    watch.write(SOLUTION)
    watch.look()
    assert "passed" in watch.settle()


def test_watch_replaces_an_ended_grader(folder: LearnerFolder) -> None:
    made: list[FakeGrader] = []

    class Mortal(FakeGrader):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def check(self, exercise: Exercise, files: dict[str, bytes], seed: int | None = None) -> Verdict:
            if self is made[0]:
                raise LaunchError("the grader's process ended with -9", "try again")
            return super().check(exercise, files, seed)

    watch = Watch(folder, Mortal)
    watch.look()
    assert "ended with -9" in watch.settle()
    assert made[0].closed
    assert "not solved yet" in watch.press("\n")


def test_long_verdict_is_paged(watch: Watch) -> None:
    watch.write('# {"observed": "' + " ".join(f"word{n}" for n in range(400)) + '"}')
    watch.look()
    first = watch.settle()
    assert "space: more" in first
    assert "word0 " in first
    pages = [first]
    while (page := watch.press(" ")) != first:
        pages.append(page)
        assert len(pages) < 20
    assert all(f"word{n}" in "".join(pages) for n in range(400))


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 12), (200, 60), (40, 3)])
def test_watch_screen_fits_the_terminal(watch: Watch, columns: int, rows: int) -> None:
    watch.write('# {"observed": "Your gradients are twice the mean.", "drawing": "rank 0 ...", "where": "step.py:3"}')
    watch.look()
    watch.settle()
    lines = screen_lines(watch.session, Style(columns), rows)
    assert len(lines) == rows
    assert lines[-1].startswith("n next")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 60, 80])
def test_every_exercise_fits_a_narrow_terminal(tmp_path: Path, columns: int) -> None:
    folder = create_folder(tmp_path / "mine")
    watch = Watch(folder)
    watch.session.is_checking = True  # nothing is checked: its files are not those of FakeGrader
    for exercise in find_exercises():
        watch.session._open(exercise)
        for keys in ("", "h", "l", "lp", "\x1br", "y"):
            for key in keys:
                watch.session.handle(("key", key))
            too_long = [
                line
                for line in screen_lines(watch.session, Style(columns), 24)
                if len(line) > columns and " " in line.strip()
            ]
            assert too_long == [], (exercise.id, keys)
        watch.session.asks = None


def test_narrow_screen_shows_the_keys_that_matter(watch: Watch) -> None:
    watch.look()
    watch.settle()
    assert watch.screen(60).splitlines()[-1] == "n next  h hint  l list  r reset  Tab verdict  q quit"
    assert watch.screen(40).splitlines()[-1] == "n next  h hint  l list  q quit"


def test_next_lab_says_where_its_page_is(watch: Watch) -> None:
    watch.look()
    watch.write(SOLUTION)
    watch.look()
    assert "page: docs/labs/lab1.md" in watch.settle()
    assert "begins" not in watch.press("n")
    (watch.session.folder.labs / "docs" / "labs" / "lab2.md").write_text("# Lab 2\n")
    assert "lab 2 begins: read docs/labs/lab2.md" in watch.press("n")


def test_q_quits_the_watch(watch: Watch) -> None:
    watch.press("q")
    assert watch.session.is_over
