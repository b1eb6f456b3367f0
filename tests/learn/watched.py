"""Run `frog learn watch` for test_watch_terminal.py: on a course folder, with a grader that does not need torch."""

import sys
from pathlib import Path

from small_course import FakeGrader

from frog.learn.folder import LearnerFolder
from frog.learn.grader.exercise import find_exercise
from frog.learn.watch import watch_exercises

folder, labs = map(Path, sys.argv[1:])
watch_exercises(LearnerFolder(folder, labs), find_exercise("1.1", labs), FakeGrader)
