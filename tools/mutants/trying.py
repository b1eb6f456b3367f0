"""Try mutants: change a file in a copy of the project, and run the room's fast tests that call it or may reach it.

A process that has imported torch and pytest, and nothing of Frog, forks one child per mutant; else each would import
torch for four seconds. What a child leaves behind, and its temporary files, are removed before the next one starts.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tools.affected.project import Project
from tools.mutants.calls import Calls, callers_of
from tools.mutants.drawing import Mutant, mutated
from tools.mutants.tracing import sitecustomize as tracing

FAST = "not slow and not alone"
IMPORTS_S = 60
"""The tests may take so long to be imported."""
TEST_S = 30
"""A test that takes longer has noticed the mutant."""
NEAREST_FILES = 3
"""The tests of so many files run before others are imported, which takes most of the time."""
LONG_S = 2
HARNESS = "tests/conftest.py:harness"
"""A test that takes longer, or has this fixture, which prepares a data set, runs after all others."""
_SET_CHILD_SUBREAPER = 36
_NO_TESTS, _BROKEN = 5, 70


@dataclass
class Trial:
    """What the tests say about a mutant."""

    outcome: str
    """`noticed`, `survived`, or `unreached` if no fast test of the room uses the changed code."""
    by: str = ""
    """The test that failed, or the file that could not be imported."""
    hung: bool = False
    """True if a test was ended after its time; that counts as noticed."""
    passed: int = 0
    unfinished: bool = False
    """True if there was no time for all tests that reach the mutant."""
    called: bool = False
    """True if the last tests that ran were still those that call the mutant."""
    seconds: float = 0.0
    durations: dict[str, float] = field(default_factory=dict)
    """Seconds of each test, over all its cases."""

    def after(self, before: Trial) -> Trial:
        """Return this trial with what other tests said before it."""
        self.passed += before.passed
        self.seconds = round(self.seconds + before.seconds, 1)
        self.durations |= before.durations
        if self.outcome == "unreached":  # all of these were slow
            self.outcome = before.outcome
        return self


class Copy:
    """A copy of the project's files in a temporary folder, in which one file at a time is changed."""

    def __init__(self, root: Path) -> None:
        self._temporary = Path(tempfile.mkdtemp(prefix="m-"))
        self.root = self._temporary / "frog"
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0"):
            if name and (root / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.root / name)
        self._changes = 0
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that orphans of a child become this process's

    def remove(self) -> None:
        """Remove the copy, and what still runs in it."""
        _end_descendants()
        shutil.rmtree(self._temporary)

    def try_mutant(self, mutant: Mutant, calling: Sequence[str], others: Sequence[str], budget_s: float) -> Trial:
        """Return what tests say about a mutant: those that call it, and in the time that is left others."""
        if not calling and not others:
            return Trial("unreached")
        path = self.root / mutant.path
        source, times = path.read_text(), path.stat()
        path.write_text(mutated(source, mutant.operator, mutant.occurrence))
        self._changes += 1
        os.utime(path, (self._changes, self._changes))  # byte code is stored for a time in seconds and a size
        trial = Trial("unreached")
        try:
            for tests in (*_nearest_first(calling), *_nearest_first(others)):
                if trial.seconds >= budget_s:
                    trial.unfinished = True
                    break
                trial = self.run(tests, budget_s - trial.seconds).after(trial)
                trial.called = tests[0] in calling
                if trial.outcome == "noticed":
                    break
            return trial
        finally:
            path.write_text(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def failing(self, tests: Sequence[str]) -> set[str]:
        """Return the tests that fail on the unchanged code."""
        failed: set[str] = set()
        while tests:
            trial = self.run(tests, 3600)
            if trial.outcome != "noticed":
                break
            failed.add(trial.by)
            tests = tests[tests.index(trial.by) + 1 :] if trial.by in tests else []
        return failed

    def record(self, tests: Sequence[str], calls: Path) -> Trial:
        """Run all fast tests of folders or files, and add to a file which functions they call."""
        calls.touch()
        return self.run(tests, 3600, calls)

    def run(self, tests: Sequence[str], budget_s: float, calls: Path | None = None) -> Trial:
        """Run tests in a forked process until one fails; after so many seconds no other test starts."""
        temporary = self._temporary / "t"
        temporary.mkdir()
        report = temporary / "report.json"
        start = time.monotonic()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            self._run_here(temporary, report, tests, budget_s, calls)
        status = _wait(child, start + IMPORTS_S + budget_s + TEST_S)
        _end_descendants()
        trial = Trial("noticed", hung=True) if status is None else self._read(report, os.waitstatus_to_exitcode(status))
        if trial.outcome == "noticed" and not trial.by:
            trial.by = _running(report)
        trial.seconds = round(time.monotonic() - start, 1)
        shutil.rmtree(temporary, ignore_errors=True)
        return trial

    def _run_here(
        self, temporary: Path, report: Path, tests: Sequence[str], budget_s: float, calls: Path | None
    ) -> None:
        """Run pytest in this process, a child, and leave it. calls: where to write what the tests call."""
        code = _BROKEN
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            log = os.open(temporary / "log.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self.root)
            sys.path.insert(0, str(self.root / "src"))
            os.environ |= {"PYTHONPATH": str(self.root / "src"), "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
            tempfile.tempdir = None
            words = ["-q", "-p", "no:cacheprovider", "-m", FAST, f"--timeout={TEST_S}"]
            words += [f"--basetemp={temporary / 'p'}", "--rootdir", str(self.root), *tests]
            plugin = _Reporter(report, budget_s)
            if calls is None:
                words.append("-x")
            else:
                os.environ |= {tracing.FOLDER: str(self.root), tracing.FILE: str(calls)}
                folders = (self.root / "src", Path(tracing.__file__).parent, self.root / "tests/quick_imports")
                os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))  # of two sitecustomize the first one runs
                plugin.before_test = tracing.trace_calls(str(self.root), str(calls))
            code = pytest.main(words, plugins=[plugin])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _read(self, report: Path, code: int) -> Trial:
        """Return what a child found."""
        lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        log = (report.parent / "log.txt").read_text(errors="replace")
        trial = Trial("noticed")
        for line in lines:
            if "passed" in line:
                trial.passed += 1
                trial.durations[line["passed"]] = trial.durations.get(line["passed"], 0.0) + line["seconds"]
            if "failed" in line and not trial.by:
                trial.by, trial.hung = line["failed"], "Timeout" in line["text"]
            trial.unfinished |= "unfinished" in line
        if trial.by:
            return trial
        if code == _BROKEN or "ERROR: not found" in log or (code == 4 and "conftest" not in log):
            raise RuntimeError(log)
        if code == _NO_TESTS:
            trial.outcome = "unreached"
        elif code == 0 or trial.unfinished:
            trial.outcome = "survived"
        else:
            trial.by = _running(report) or log.strip().splitlines()[-1][:200]
        return trial


class _Reporter:
    """Plugin of pytest: writes each test that starts, passes or fails, and stops when the time is over."""

    def __init__(self, path: Path, budget_s: float) -> None:
        self._file = path.open("a", buffering=1)
        self._budget_s, self._end = budget_s, 0.0
        self._setup_s = 0.0
        self.before_test: Callable[[], None] = lambda: None

    def _write(self, **facts: object) -> None:
        self._file.write(json.dumps(facts) + "\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._end = self._end or time.monotonic() + self._budget_s  # without the time of imports
        self.before_test()
        self._write(started=nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if time.monotonic() > self._end and self._session is not None:
            self._session.shouldstop = "the time is over"
            self._write(unfinished=True)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(failed=report.nodeid, text=str(report.longrepr)[-2000:])
        elif report.when == "setup":
            self._setup_s = report.duration
        elif report.when == "call" and report.passed:
            self._write(passed=report.nodeid.partition("[")[0], seconds=self._setup_s + report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(failed=report.nodeid, text="")


def fast_tests(
    project: Project, room: str, mutant: Mutant, seconds: Mapping[str, float], calls: Calls
) -> tuple[list[str], list[str]]:
    """Return the tests of a room that call what a mutant changes, and others that may use it by the graph of uses.

    The quick ones are first among those that call it, the nearest in the graph first among the others.

    seconds: what is known of the tests' times.
    """
    module = project.module_of[mutant.path]
    part = mutant.part if mutant.part in project.graph.facts[module].parts else ""
    users = project.graph.users_of([f"{module}:{part}"])
    depths: dict[str, int] = {}
    for node, before in users.items():
        depths[node] = depths[before] + 1 if before else 0
    callers = callers_of(project, (project.root / mutant.path).read_text(), mutant, calls)
    calling, others = [], []
    for node, depth in depths.items():
        file, _, name = node.partition(":")
        if file.startswith(f"tests/{room}/") and name.startswith("test_"):
            test = f"{file}::{name}"
            is_long = seconds.get(test, 0.0) > LONG_S or HARNESS in project.graph.uses[node]
            if test in callers or file in callers:
                calling.append((is_long, test not in callers, depth, file, test))
            else:
                others.append((is_long, depth, file, test))
    return [test for *_, test in sorted(calling)], [test for *_, test in sorted(others)]


def _nearest_first(tests: Sequence[str]) -> list[list[str]]:
    """Split tests into those of the first files and the others, whose imports take most of the time."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))[:NEAREST_FILES]
    near = [test for test in tests if test.partition("::")[0] in files]
    return [each for each in (near, [test for test in tests if test not in near]) if each]


def prepare() -> None:
    """Import what every child needs and what is not Frog's."""
    import torch.distributed  # noqa: F401

    assert "frog" not in sys.modules
    gc.freeze()


def _running(report: Path) -> str:
    """Return the test that was running when a child ended."""
    lines: Iterable[str] = report.read_text().splitlines() if report.exists() else []
    started = [json.loads(line).get("started") for line in lines]
    return next(filter(None, reversed(started)), "")


def _wait(child: int, deadline: float) -> int | None:
    """Return the status of a child, or None if it had to be killed."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _end_descendants() -> None:
    """Kill and reap all processes that a child has left."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for process in psutil.Process().children():
            try:
                os.waitpid(process.pid, 0)
            except ChildProcessError:
                continue
