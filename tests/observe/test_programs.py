"""An observed program behaves as an unobserved one: output, exit code, threads, signals, hooks, children."""

from __future__ import annotations

import _thread
import faulthandler
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from observe.programs import PROGRAMS, run_program, without_observers_threads

from frog.core.runs.observed import Observed, read_observed
from frog.observe.environment import HOOK
from frog.observe.hook.frog_observer import beat, crashes


def observed(run: Path) -> Observed:
    return read_observed(run)[0][1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_behaves_the_same_with_and_without_observer(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = without_observers_threads(run_program(PROGRAMS[name], folder, tmp_path))
    assert result == without_observers_threads(run_program(PROGRAMS[name], None, tmp_path))
    assert observed(folder).problems == []


@pytest.mark.parametrize("name", ["ends", "raises", "crashes", "forks"])
@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null", "/dev/full/x"])
def test_program_behaves_the_same_if_nothing_can_be_written(name: str, folder: str, tmp_path: Path) -> None:
    result = run_program(PROGRAMS[name], Path(folder), tmp_path)
    assert result == run_program(PROGRAMS[name], None, tmp_path)


@pytest.mark.parametrize("name", ["forks", "pool", "thread_raises", "ends"])
def test_warnings_as_errors_find_nothing(name: str, tmp_path: Path) -> None:
    options = ("-W", "error", "-X", "dev")
    with_observer = run_program(PROGRAMS[name], tmp_path / "run", tmp_path, *options)
    assert with_observer == run_program(PROGRAMS[name], None, tmp_path, *options)


def test_observers_threads_run_before_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it runs, a thread of an observed program can crash Python at the end of its start (gh-111924)."""
    start, begun = _thread.start_new_thread, []

    def start_late(run: Callable[[], None], arguments: tuple[()]) -> int:
        return start(lambda: (time.sleep(0.1), begun.append(run), run()), arguments)

    monkeypatch.setattr(_thread, "start_new_thread", start_late)
    beat._start_thread(lambda: None)
    assert begun


def test_observer_rests_while_the_programs_own_dump_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault handler reads all threads while they run, and ends its dump at one whose frames change."""
    now_s = 1000.0
    monkeypatch.setattr(crashes.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: True)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *args, **kwargs: None)
    own = crashes.Crashes(str(tmp_path / "crash.txt"))
    assert not own.is_dump_due()
    faulthandler.dump_traceback_later(timeout=60)
    due = {}
    for now_s in (1000.0, 1059.5, 1059.9, 1060.0, 1060.5):
        due[now_s] = own.is_dump_due()
    assert due == {1000.0: False, 1059.5: False, 1059.9: True, 1060.0: True, 1060.5: False}


def test_hook_runs_the_next_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.seen = __file__\n")
    code = "import sitecustomize\nprint(seen == sitecustomize.__file__)"
    assert run_program(code, tmp_path / "run", tmp_path, PYTHONPATH=str(tmp_path)) == ("True\n", "", 0)


def test_failing_sitecustomize_of_the_user_is_reported_as_without_observer(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    path = {"PYTHONPATH": str(tmp_path)}
    expected = run_program("print(1)", None, tmp_path, **path)
    assert "ZeroDivisionError" in expected[1]
    assert run_program("print(1)", tmp_path / "run", tmp_path, **path) == expected


def test_failing_hook_costs_one_line(tmp_path: Path) -> None:
    environ = {"FROG_HOOKS": "no_such_hook"}
    out, err, code = run_program("print(1)", None, tmp_path, PYTHONPATH=hook_path(tmp_path), **environ)
    assert (out, code) == ("1\n", 0)
    assert err == "frog: no_such_hook did not start: ModuleNotFoundError: No module named 'no_such_hook'\n"


def hook_path(tmp_path: Path) -> str:
    return os.pathsep.join((str(HOOK), os.environ.get("PYTHONPATH", "")))
