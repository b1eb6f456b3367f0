"""Frames as data: which lines are the user's, and the stacks of threads and tracebacks."""

from __future__ import annotations

import json
import linecache
import os
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from frog.observe.hook.frog_observer import crashes, frames

HOOK = str(Path(frames.__file__).parents[1])


def compiled(source: str, file: str) -> dict[str, object]:
    """Return the names of a program whose file has this name."""
    names: dict[str, object] = {"sys": sys}
    exec(compile(source, file, "exec"), names)
    return names


def frame_in(file: str, inner: str = "sys._getframe()") -> FrameType:
    frame = compiled(f"def run(inner=None):\n    return {inner}", file)["run"]()  # type: ignore[operator]
    assert isinstance(frame, FrameType)
    return frame


@pytest.mark.parametrize(
    ("path", "is_user"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("<string>", True),
        ("<stdin>", True),
        ("<frozen importlib._bootstrap>", False),
        (json.__file__, False),
        ("/x/site-packages/torch/nn.py", False),
        (str(Path(HOOK).parents[1] / "train" / "loop.py"), False),
        ("/x/dist-packages/torch/nn.py", False),
        ("/x/my-site-packages-notes/a.py", True),
        (f"{HOOK}/frog_observer/beat.py", False),
        (f"{HOOK}/sitecustomize.py", False),
        (f"{HOOK}s/other.py", True),
    ],
)
def test_user_files_are_outside_python_its_packages_and_the_hooks(path: str, is_user: bool) -> None:
    assert frames.is_user_file(path) == is_user


def test_path_is_absolute_from_where_python_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_START", "/home/me")
    assert frames.full_path("lib/../train.py") == "/home/me/train.py"
    assert frames.full_path("/x/train.py") == "/x/train.py"
    assert frames.full_path("<string>") == "<string>"


def test_stack_is_innermost_first_without_the_observers_own() -> None:
    def inner() -> FrameType:
        return sys._getframe()

    own = compiled("def call(function):\n    return function()", f"{HOOK}/frog_observer/beat.py")["call"]
    frame = own(inner)  # type: ignore[operator]
    stack = frames.stack_of(frame)
    assert [each.f_code.co_name for each in stack[:2]] == ["inner", sys._getframe().f_code.co_name]
    assert frames.stack_of(None) == []


def test_place_has_the_line_of_the_frame_or_another_one() -> None:
    frame = frame_in("/home/me/train.py")
    assert frames.place_of(frame) == {"file": "/home/me/train.py", "line": 2, "function": "run"}
    assert frames.place_of(frame, 7)["line"] == 7
    assert frames.place_of(frame, 0)["line"] == 0


def test_line_of_the_user_is_the_innermost_in_a_user_file() -> None:
    torch, user, outer = (frame_in(file) for file in ("/x/site-packages/torch/nn.py", "/me/train.py", "/me/main.py"))
    line = frames.user_line([torch, user, outer])
    assert line is not None
    assert line["file"] == "/me/train.py"
    assert frames.user_line([torch]) is None
    assert frames.user_line([]) is None


@pytest.mark.parametrize("with_code", [True, False])
def test_stacks_of_all_threads_begin_with_the_main_one_and_end_with_their_innermost_frame(with_code: bool) -> None:
    ready, over = threading.Event(), threading.Event()

    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        else:
            ready.set()
            over.wait()

    thread = threading.Thread(target=deep, args=(80,), name="a deep one")
    thread.start()
    ready.wait()
    stacks = frames.all_stacks(threading.get_ident(), with_code)
    over.set()
    thread.join()
    assert (stacks[0]["name"], stacks[0]["main"]) == (threading.current_thread().name, True)
    assert [stack["main"] for stack in stacks[1:]] == [False] * (len(stacks) - 1)
    last = stacks[0]["frames"][-1]
    assert last["function"] == sys._getframe().f_code.co_name
    assert last["code"] == ("stacks = frames.all_stacks(threading.get_ident(), with_code)" if with_code else "")
    (found,) = [stack for stack in stacks if stack["name"] == "a deep one"]
    assert len(found["frames"]) == 64  # the innermost ones
    assert found["frames"][-1]["file"] == threading.__file__
    assert found["frames"][0]["function"] == "deep"


def failed(depth: int) -> BaseException:
    def fail(left: int) -> None:
        if left:
            fail(left - 1)
        raise ValueError

    try:
        fail(depth)
    except ValueError as error:
        return error
    raise AssertionError


def test_frames_of_a_traceback_have_their_lines() -> None:
    error = failed(2)
    places = frames.traceback_places(error.__traceback__)
    assert [place["function"] for place in places] == ["failed", "fail", "fail", "fail"]
    assert [place["code"] for place in places] == [
        "fail(depth)",
        "fail(left - 1)",
        "fail(left - 1)",
        "raise ValueError",
    ]
    assert [place["line"] for place in places][1] == failed.__code__.co_firstlineno + 3
    assert {place["file"] for place in places} == {os.path.abspath(__file__)}
    stack = frames.traceback_stack(error.__traceback__)
    assert [frame.f_code.co_name for frame in stack] == ["fail", "fail", "fail", "failed"]
    assert (frames.traceback_places(None), frames.traceback_stack(None)) == ([], [])


def test_long_traceback_keeps_its_innermost_frames() -> None:
    places = frames.traceback_places(failed(100).__traceback__)
    assert len(places) == 64
    assert places[-1]["code"] == "raise ValueError"


def test_long_line_of_code_is_cut() -> None:
    linecache.cache["/me/long.py"] = (1, None, ["\n", "x" * 300], "/me/long.py")
    try:
        assert len(frames._with_code({"file": "/me/long.py", "line": 2}, True)["code"]) == 200
    finally:
        del linecache.cache["/me/long.py"]


HANDLES = {
    "except": "try: fail()\nexcept OSError: look()",
    "finally": "def run():\n    try: fail()\n    finally: look()\ntry: run()\nexcept OSError: pass",
    "with": "class Room:\n    def __enter__(self): pass\n    def __exit__(self, *error): return look() is None\n"
    "with Room(): fail()",
    "nothing": "try: fail()\nexcept OSError: pass\nlook()",
}


@pytest.mark.parametrize("where", HANDLES)
def test_exception_that_a_thread_handles_is_seen_from_another_one(where: str) -> None:
    seen = []

    def look() -> None:
        """Ask in another thread, as the observer does."""
        thread = threading.Thread(
            target=lambda ident: seen.append(crashes.handled_by(ident)), args=[threading.get_ident()]
        )
        thread.start()
        thread.join()

    names = {"look": look}
    exec(
        compile("def fail():\n    raise OSError('disk is full')\n" + HANDLES[where], "/home/me/train.py", "exec"), names
    )
    (found,) = seen
    if where == "nothing":
        assert found is None
    else:
        assert found == {"type": "OSError", "message": "disk is full", "line": found["line"]}
        assert (found["line"]["file"], found["line"]["line"]) == ("/home/me/train.py", 2)


def test_exception_without_a_text_is_left_out() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert crashes.handled(Silent()) is None
