"""What `frog learn watch` makes of each event, and its screen, without terminal and without processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from small_course import SOLUTION, STUB, FakeGrader, write_course

from frog.core.errors import LaunchError
from frog.course.folder import LearnerFolder, create_folder
from frog.course.screen import screen_lines
from frog.course.session import Session
from frog.course.terminal import Event
from frog.course.text import Style
from frog.grader.exercise import Exercise, find_exercise
from frog.grader.verdict import Verdict

DEADLINE_S = 60


class Watch:
    """A session whose events are handed on one by one."""

    def __init__(self, folder: LearnerFolder, grader: type[FakeGrader] = FakeGrader) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.session = Session(folder, find_exercise("1.1", folder.labs), grader, self.events)

    def write(self, text: str) -> None:
        (self.session.folder.place(self.session.exercise) / "step.py").write_text(text)

    def look(self) -> None:
        self.session.handle(("look", None))

    def settle(self) -> str:
        """When all checks have ended, what is on the screen."""
        while self.session.is_checking:
            self.session.handle(self.events.get(timeout=DEADLINE_S))
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


def test_a_saved_file_is_checked_once(watch: Watch) -> None:
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
    assert "-- checked " in screen


def test_what_is_saved_during_a_check_is_checked_after_it(watch: Watch) -> None:
    watch.write("return 2")
    watch.look()
    watch.write(SOLUTION)
    watch.look()
    assert "passed" in watch.settle()
    assert watch.session.folder.progress().work("lab1/01_first").checks == 3


def test_enter_checks_again(watch: Watch) -> None:
    watch.press("\n")
    assert watch.session.folder.progress().work("lab1/01_first").checks == 2


def test_next_goes_on_and_comes_around(watch: Watch) -> None:
    assert "lab 1.2  the second" in watch.press("n")
    assert watch.session.folder.progress().current == "lab1/02_second"
    assert "lab 2.1  the third" in watch.press("n")
    assert "lab 1.1  the first" in watch.press("n")
    watch.write(SOLUTION)
    assert "passed" in watch.press("\n")
    assert "lab 1.2  the second" in watch.press("n")
    assert "lab 2.1  the third" in watch.press("n")
    assert "lab 1.2  the second" in watch.press("n")


def test_next_during_a_check_shows_nothing_of_the_last_exercise(watch: Watch) -> None:
    watch.write(SOLUTION)
    watch.look()
    watch.session.handle(("key", "n"))
    watch.session.handle(watch.events.get(timeout=DEADLINE_S))
    assert ": passed" not in watch.screen()
    assert "lab 1.2  the second: not solved yet" in watch.settle()
    assert watch.session.folder.progress().work("lab1/01_first").passed is not None


def test_hints_stay_on_the_screen(watch: Watch) -> None:
    assert "hint 1 of 3: a question" in watch.press("h")
    watch.write("return 2")
    watch.look()
    screen = watch.settle()
    assert "hint 1 of 3: a question" in screen
    assert "not passed" in screen
    assert "hint 3 of 3: nearly there" in watch.press("h", "h", "h")
    assert "hint" not in watch.press("n").splitlines()[3]


def test_the_list_comes_and_goes(watch: Watch) -> None:
    screen = watch.press("l")
    assert "> 1.1" in screen
    assert "  2.1" in screen
    assert "not solved yet" in watch.press("l")


def test_a_long_list_opens_where_the_learner_is(watch: Watch) -> None:
    watch.press("n", "n", "l")
    assert "> 2.1" in watch.screen(rows=8)
    assert "1.1 " not in watch.screen(rows=8)
    watch.press(" ")
    assert "1.1 " in watch.screen(rows=8)


def test_reset_asks_first(watch: Watch) -> None:
    watch.write("mine")
    watch.look()
    watch.settle()
    place = watch.session.folder.place(watch.session.exercise)
    assert "y: yes" in watch.press("r")
    assert "nothing was reset" in watch.press("q")
    assert (place / "step.py").read_text() == "mine"
    assert not watch.session.is_over
    assert "reset; yours is in backups/lab1/01_first/" in watch.press("r", "y")
    assert (place / "step.py").read_text() == STUB
    assert "not solved yet" in watch.screen()


def test_a_number_is_predicted_in_the_watch(watch: Watch) -> None:
    assert "asks for no prediction" in watch.press("p")
    watch.press("n")
    watch.write(SOLUTION + '# {"predicted": {"bytes-sent": 3985152}}')
    watch.look()
    assert "Predict, then frog learn check 1.2 again" in watch.settle()
    assert "How many bytes does a rank send?" in watch.press("p", *"5.3 MBB", "\x7f").splitlines()[3]
    assert "predicted 5.3 MB, measured 3.99 MB (33 % off)" in watch.press("\n")
    assert "found the unit apples" in watch.press("p", *"5 apples", "\n")
    watch.press("p", "5", "\x1b")
    assert len(watch.session.folder.progress().predictions) == 1


def test_a_missing_file_is_named_until_it_is_back(watch: Watch) -> None:
    path = watch.session.folder.place(watch.session.exercise) / "step.py"
    path.unlink()
    watch.look()
    assert "is missing" in watch.settle().replace("\n", " ")
    assert "frog learn reset 1.1" in watch.screen()
    watch.write(SOLUTION)
    watch.look()
    assert "passed" in watch.settle()


def test_a_grader_that_is_gone_is_replaced(folder: LearnerFolder) -> None:
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


def test_what_does_not_fit_is_on_the_next_page(watch: Watch) -> None:
    watch.write('# {"observed": "' + " ".join(f"word{n}" for n in range(400)) + '"}')
    watch.look()
    first = watch.settle()
    assert "space: page 1 of " in first
    assert "word0 " in first
    seen = first
    for _ in range(int(first.split("page 1 of ")[1].split()[0]) - 1):
        seen += watch.press(" ")
    assert all(f"word{n}" in seen for n in range(400))
    assert watch.press(" ") == first


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 12), (200, 60), (40, 3)])
def test_the_screen_fits(watch: Watch, columns: int, rows: int) -> None:
    watch.write('# {"observed": "Your gradients are twice the mean.", "drawing": "rank 0 ...", "where": "step.py:3"}')
    watch.look()
    watch.settle()
    lines = screen_lines(watch.session, Style(columns), rows)
    assert len(lines) == rows
    assert lines[-1].startswith("n next")


def test_quit(watch: Watch) -> None:
    watch.press("q")
    assert watch.session.is_over
