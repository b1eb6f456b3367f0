"""A program forked from the grader does what a new program does."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from frog.learn.grader.client import Grader
from frog.learn.grader.exercise import Exercise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are forked on Linux only")

FILES = {
    "lab9/01_programs/manifest.toml": """
        title = "a program"
        able = "run"
        minutes = 1
        files = ["words.py"]
        functions = []
        hints = ["a", "b", "c"]
    """,
    "lab9/01_programs/words.py": "",
    "lab9/01_programs/reference/words.py": "WORD = 'reference'",
    "lab9/01_programs/check.py": """
        import json, sys
        from pathlib import Path

        PROGRAM = '''
        import atexit, json, os, random, resource, sys, threading
        was_loaded = "torch" in sys.modules
        from words import END
        print(json.dumps({
            "argv": sys.argv, "stdin": sys.stdin.read(), "name": __name__, "file": os.path.basename(__file__),
            "variables": {n: v for n, v in os.environ.items() if n not in ("TMPDIR", "LC_CTYPE")},
            "folder": os.getcwd() == os.path.realpath(sys.path[0] or ".") == os.path.realpath(os.environ["TMPDIR"]),
            "files": sorted(os.listdir()), "open": sorted(os.listdir("/proc/self/fd"))[:4],
            "labs": os.path.exists(LABS), "leads": os.getsid(0) == os.getpid(), "threads": threading.active_count(),
            "limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE)],
        }))
        sys.stdout.flush()
        print(was_loaded, file=open("loaded", "w"))
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: [threading.main_thread().join(), print("a thread")]).start()
        exec(END, {})
        '''

        def check(grade):
            script = "LABS = " + repr(str(grade.exercise.folder / "check.py")) + PROGRAM
            env, files = {"WORD": "frog"}, {"drive.py": script}
            words = [sys.executable, "drive.py", "a b", "2"]
            found = [
                grade.program(words, env=env, files=files, stdin="given", seconds=30.0, fork=fork)
                for fork in (False, True)
            ]
            forked = [grade.written(ended, "loaded").strip() for ended in found]
            said = [[ended.code, ended.out, ended.err.strip().splitlines()[-1:]] for ended in found]
            grade.reject("unknown", json.dumps({"forked": forked, "said": said}))
    """,
}


def write_exercise(labs: Path) -> Exercise:
    for name, text in FILES.items():
        (labs / name).parent.mkdir(parents=True, exist_ok=True)
        (labs / name).write_text(textwrap.dedent(text))
    return Exercise(labs / "lab9/01_programs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code", "last_line"),
    [
        ("import torch; print(torch.get_num_threads())", 0, []),
        ("raise SystemExit(3)", 3, []),
        ("raise SystemExit('no more')", 1, ["no more"]),
        ("1 / 0", 1, ["ZeroDivisionError: division by zero"]),
        ("import os; os.kill(os.getpid(), 9)", -9, []),
    ],
)
def test_forked_program_equals_a_new_one(
    grader: Grader, tmp_path: Path, end: str, code: int, last_line: list[str]
) -> None:
    verdict = grader.check(write_exercise(tmp_path), {"words.py": f"END = {end!r}".encode()})
    assert verdict.misconception == "unknown", verdict.observed
    found = json.loads(verdict.observed or "")
    new, forked = found["said"]
    assert found["forked"] == ["False", "True"]
    about, *new_lines = new[1].splitlines()
    about_forked, *forked_lines = forked[1].splitlines()
    assert json.loads(about_forked) == json.loads(about)
    assert (forked[0], forked_lines, forked[2]) == (new[0], new_lines, new[2])
    assert (new[0], new[2]) == (code, last_line)
    assert ("a thread\nat exit" in new[1]) is (code >= 0)
    assert json.loads(about)["labs"] is False


def test_forked_programs_draw_different_numbers(grader: Grader, tmp_path: Path) -> None:
    """An unseeded generator of torch starts with a random seed in each process."""
    exercise = write_exercise(tmp_path)
    check = exercise.folder / "check.py"
    check.write_text(check.read_text().replace("(False, True)", "(True, True)"))
    verdict = grader.check(exercise, {"words.py": b"END = 'import torch; print(torch.rand(9).tolist())'"})
    one, other = (set(json.loads(said[1].splitlines()[1])) for said in json.loads(verdict.observed or "")["said"])
    assert len(one) > 1
    assert one.isdisjoint(other)
