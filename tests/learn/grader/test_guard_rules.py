"""The grader's rules by event, without a process that they confine: each is asked about allowed and refused calls."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from frog.learn.grader import guard
from frog.learn.grader.guard import Snapshot, _Bounds

READ, WRITE = os.O_RDONLY, os.O_WRONLY


@pytest.fixture
def bounds(tmp_path: Path) -> _Bounds:
    for name in ("labs", "scratch", "other"):
        (tmp_path / name).mkdir()
    return _Bounds(lambda what, seen: None, str(tmp_path / "labs"), str(tmp_path / "scratch"))


def refused(bounds: _Bounds, event: str, *args: Any) -> str | None:
    """Return the id of the violation, None if the event is allowed."""
    found: list[str] = []
    bounds._report = lambda what, seen: found.append(what)
    try:
        bounds(event, args)
    except PermissionError:
        return found[0] if found else "refused"
    return found[0] if found else None


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("labs/lab1/check.py", READ, "looked-it-up"),
        ("labs", READ, "looked-it-up"),
        ("scratch/../labs/x", READ, "looked-it-up"),
        ("labs2", READ, None),
        ("other/file", READ, None),
        ("other/file", WRITE, "outside"),
        *[("other/file", flag, "outside") for flag in (os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND)],
        ("other/file", os.O_CLOEXEC, None),
        ("other/file", "w", None),  # only the flags tell
        ("other", READ, "outside"),  # a folder
        ("scratch", READ, None),
        ("scratch/file", WRITE | os.O_CREAT, None),
        ("scratch2", WRITE, "outside"),
        ("/dev/null", WRITE, None),
        ("/proc/self/status", READ, None),
        pytest.param(f"/proc/{os.getpid()}/status", READ, None, id="own status"),
        ("/proc/1/status", READ, "looked-it-up"),
        ("/proc/1", READ, "looked-it-up"),
        ("/proc/meminfo", READ, None),
        (3, WRITE, None),
        ("", WRITE, None),
    ],
)
def test_files_are_read_outside_the_course_and_written_below_the_scratch_folder(
    name: str | int, flags: int, expected: str | None, bounds: _Bounds, tmp_path: Path
) -> None:
    path = str(tmp_path / name) if isinstance(name, str) and name else name
    assert refused(bounds, "open", path, None, flags) == expected
    if isinstance(path, str):
        assert refused(bounds, "open", os.fsencode(path), None, flags) == expected


@pytest.mark.parametrize(
    ("event", "args", "expected"),
    [
        ("os.listdir", ("labs",), "looked-it-up"),
        ("os.scandir", ("other",), None),
        ("glob.glob", ("labs/lab1",), "looked-it-up"),
        ("os.remove", ("other/a", -1), "outside"),
        ("os.remove", ("scratch/a", -1), None),
        ("os.rename", ("scratch/a", "scratch/b", -1, -1), None),
        ("os.rename", ("scratch/a", "other/b", -1, -1), "outside"),
        ("os.rename", ("other/a", "scratch/b", -1, -1), "outside"),
        ("os.symlink", ("other/a", "scratch/b", -1), "outside"),
        ("os.chmod", ("other/a", 0o600, -1), "outside"),
        ("os.truncate", ("other/a", 0), "outside"),
        ("os.truncate", (7, 0), None),
        ("shutil.move", ("scratch/a", "other/a"), "outside"),
        ("os.utime", ("scratch/a", None, None, -1), None),
        ("os.symlink", ("scratch/a", "other/b", -1), "outside"),
        ("os.symlink", ("scratch/a", "scratch/b", -1), None),
        ("os.link", ("other/a", "scratch/b", -1, -1), "outside"),
        ("os.link", ("scratch/a", "other/b", -1, -1), "outside"),
        ("os.rmdir", ("other/a", -1), "outside"),
        ("os.mkdir", ("other/a", 0o700, -1), "outside"),
        ("os.chown", ("other/a", 0, 0, -1), "outside"),
        ("shutil.rmtree", ("other/a", None), "outside"),
        ("shutil.move", ("other/a", "scratch/a"), "outside"),
        ("sqlite3.connect", ("other/a",), "outside"),
    ],
)
def test_folders_of_the_course_are_not_listed_and_other_files_not_changed(
    event: str, args: tuple[Any, ...], expected: str | None, bounds: _Bounds, tmp_path: Path
) -> None:
    whole = [str(tmp_path / arg) if isinstance(arg, str) else arg for arg in args]
    assert refused(bounds, event, *whole) == expected


@pytest.mark.parametrize(
    ("event", "args"),
    [
        ("os.remove", ("a", None)),
        ("os.rename", ("a", "/x", None, -1)),
        ("os.rename", ("/x", "a", -1, None)),
        ("os.rmdir", ("a", None)),
        ("os.mkdir", ("a", 0o700, None)),
        ("os.chmod", ("a", 0o600, None)),
        ("os.chown", ("a", 0, 0, None)),
        ("os.link", ("a", "/x", None, -1)),
        ("os.link", ("/x", "a", -1, None)),
        ("os.symlink", ("/x", "a", None)),
        ("os.utime", ("a", 1, 1, None)),
        ("shutil.rmtree", ("a", None)),
    ],
)
def test_descriptor_of_a_folder_is_at_its_place_in_each_event(
    event: str, args: tuple[Any, ...], bounds: _Bounds, tmp_path: Path
) -> None:
    """Every place is that of the argument None here."""
    for name, expected in (("scratch", None), ("other", "outside")):
        folder = os.open(tmp_path / name, os.O_RDONLY)
        inside = [str(tmp_path / "scratch" / "x") if arg == "/x" else arg for arg in args]
        assert refused(bounds, event, *[folder if arg is None else arg for arg in inside]) == expected, name
        os.close(folder)


def test_path_relative_to_an_open_folder_is_found(bounds: _Bounds, tmp_path: Path) -> None:
    for name, expected in (("scratch", None), ("other", "outside")):
        folder = os.open(tmp_path / name, os.O_RDONLY)
        assert refused(bounds, "os.remove", "a", folder) == expected
        assert guard._place("a", folder) == str(tmp_path / name / "a")
        os.close(folder)
    assert guard._place("a", -1) == guard._place(Path("a")) == os.path.realpath("a")


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1", "localhost", None, b"", "")],
        (socket.gethostname(), True),
        *[(host, False) for host in ("10.0.0.1", "::2", "::ffff:10.0.0.1", "127.example.org", "example.org")],
    ],
)
def test_only_this_machine_is_reached(host: Any, is_local: bool, bounds: _Bounds) -> None:
    expected = None if is_local else "outside"
    for event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        assert refused(bounds, event, None, (host, 80)) == expected
        assert refused(bounds, event, None, "/a/unix/socket") is None
    assert refused(bounds, "socket.bind", None, (host, 80)) == (expected if host else "outside")
    assert refused(bounds, "socket.bind", None, "/a/unix/socket") is None
    is_number = str(host)[:2] in ("10", "::")
    assert refused(bounds, "socket.getaddrinfo", host, 80) == (None if is_number else expected)


@pytest.mark.parametrize(
    ("event", "args", "expected"),
    [
        ("import", ("frog.learn.grader.judge", None), "looked-it-up"),
        ("import", ("frog.train", None), None),
        ("import", ("_signal", None), "outside"),
        ("import", ("numpy.core", np.__file__), None),
        ("import", ("own", "/tmp/own.so"), "outside"),
        ("os.fork", (), "too-many-processes"),
        ("os.system", (b"ls",), "outside"),
        ("os.kill", (os.getpid(), 9), None),
        ("os.kill", (1, 9), "outside"),
        ("os.killpg", (os.getpid(), 9), "outside"),
        ("compile", ("x = 1", "mine.py"), None),
        ("compile", ("x = 1", os.__file__), "patched"),
        ("compile", ("x = 1", os.fsencode(os.__file__)), "patched"),
        ("compile", ("import abc", os.__file__), None),  # a part of one of its lines
        ("compile", (None, None), None),
        ("gc.get_referents", (), "patched"),
        ("an.event", (), None),
    ],
)
def test_other_events_are_judged(event: str, args: tuple[Any, ...], expected: str | None, bounds: _Bounds) -> None:
    assert refused(bounds, event, *args) == expected


def learners(source: str, name: str, **names: Any) -> Any:
    """Return a function of a learner's file."""
    module: dict[str, Any] = {"sys": sys, **names}
    exec(compile(source, "/home/me/mine.py", "exec"), module)
    return module[name]


own = learners("def own(): ...", "own")


def test_functions_of_libraries_are_not_replaced(bounds: _Bounds) -> None:
    set_, get = "object.__setattr__", "object.__getattr__"
    assert refused(bounds, set_, own, "__code__") == "patched"
    assert refused(bounds, set_, own, "__defaults__") is None
    for name in ("__defaults__", "__kwdefaults__"):
        assert refused(bounds, set_, os.path.join, name) == "patched"
    assert refused(bounds, set_, os.path.join, "__doc__") is None
    for name, expected in (("tb_frame", "patched"), ("gi_frame", "patched"), ("tb_next", None)):
        assert refused(bounds, get, None, name) == expected
    assert refused(bounds, "sys._getframe") == "patched"


# ---- who asks for a frame --------------------------------------------------------------------------------------------


def called_from(library: str, source: str, **names: Any) -> Any:
    """Return a function of a module that counts as a library's."""
    code = compile(source, f"{os.path.dirname(os.__file__)}/{library}.py", "exec")
    module: dict[str, Any] = {"__name__": library, "sys": sys, **names}
    exec(code, module)
    return module


ASK = "def ask():\n    sys._getframe\n    return judge(sys._getframe(0), '_getframe')\n"


@pytest.mark.parametrize(
    ("library", "source", "expected"),
    [
        ("warnings", ASK, False),  # it only inspects them
        ("functools", "def ask():\n    return judge(None, called)", True),
        ("inspect", ASK.replace("ask", "currentframe") + "ask = currentframe", True),
        ("inspect", ASK.replace("ask", "inner") + "def stack():\n    return inner()\nask = stack", True),
        ("inspect", ASK.replace("ask", "inner") + "def getfile():\n    return inner()\nask = getfile", False),
    ],
)
def test_library_may_inspect_frames_but_not_hand_them_on(library: str, source: str, expected: bool) -> None:
    def judge(frame: Any, what: str) -> bool:
        return guard._gives_frame(sys._getframe(1), what)

    assert called_from(library, source, judge=judge, called="_getframe")["ask"]() == expected


def test_learners_code_never_gets_a_frame() -> None:
    source = "def ask(): return judge(sys._getframe(), '_getframe')"
    assert learners(source, "ask", judge=guard._gives_frame)()


def test_library_that_names_the_function_may_have_the_frame() -> None:
    inspected = called_from(
        "inspect",
        "def currentframe():\n    sys._getframe\n    return judge()\n",
        judge=lambda: guard._gives_frame(sys._getframe(1), "_getframe"),
    )
    other = "import types\ndef ask():\n    return inspect.currentframe()\n"
    holder = ModuleType("inspect")
    holder.__dict__.update(inspected)
    assert called_from("dataclasses", other, inspect=holder)["ask"]() is False
    assert called_from("functools", "def ask():\n    return given()\n", given=holder.currentframe)["ask"]() is True


def test_import_is_recognized_through_library_frames_only() -> None:
    assert not guard._is_import(sys._getframe())
    assert not guard._is_import(None)
    seen: list[bool] = []
    sys.modules.pop("this_is_imported", None)

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name == "this_is_imported":
                seen.append(guard._is_import(sys._getframe(1)))

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
    try:
        with pytest.raises(ImportError):
            importlib.import_module("this_is_imported")
    finally:
        sys.meta_path.remove(Finder)  # type: ignore[arg-type]
    assert seen == [True]


# ---- what was changed ------------------------------------------------------------------------------------------------


class Thing:
    def method(self) -> int:
        return 1


def an_exercise() -> ModuleType:
    module = ModuleType("exercise")
    module.__dict__.update(STEPS=3, TABLE={"a": [1, (2, 3)]}, small=1, solve=own)
    return module


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda exercise, monkeypatch: None, None),
        (lambda exercise, monkeypatch: setattr(exercise, "small", 2), None),
        (lambda exercise, monkeypatch: setattr(exercise, "STEPS", 4), "exercise.STEPS"),
        (lambda exercise, monkeypatch: delattr(exercise, "STEPS"), "exercise.STEPS"),
        (lambda exercise, monkeypatch: exercise.TABLE["a"].append(4), "exercise.TABLE"),
        (lambda exercise, monkeypatch: exercise.TABLE.update(b=1), "exercise.TABLE"),
        (lambda exercise, monkeypatch: exercise.TABLE.update(a=[1, [2, 3]]), "exercise.TABLE"),
        (lambda exercise, monkeypatch: monkeypatch.setattr(textwrap, "fill", own), "textwrap.fill"),
        (lambda exercise, monkeypatch: monkeypatch.setattr(textwrap, "_whitespace", "x"), None),  # no function
        (lambda exercise, monkeypatch: monkeypatch.setattr(textwrap, "added", own, raising=False), None),
        (lambda exercise, monkeypatch: monkeypatch.setattr(Thing, "method", own), "Thing.method"),
        (lambda exercise, monkeypatch: monkeypatch.setattr(Thing, "added", own, raising=False), "Thing.added"),
        (lambda exercise, monkeypatch: monkeypatch.setattr(Thing, "__slotnames__", [], raising=False), None),
        (lambda exercise, monkeypatch: monkeypatch.setattr("builtins.sum", own), "builtins.sum"),
    ],
)
def test_first_changed_function_or_constant_is_named(
    change: Any, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    exercise = an_exercise()
    snapshot = Snapshot([textwrap, Thing], exercise)
    change(exercise, monkeypatch)
    assert snapshot.changed() == name
