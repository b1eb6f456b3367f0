"""Write which functions of Frog each test calls: in the tests' own process, its forks, and every Python it starts.

A line of the file is "test, function"; pytest names the test in the environment. Python imports this module by itself
if its folder is on PYTHONPATH; it then runs the `sitecustomize` that follows.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType

FOLDER, FILE = "FROG_TEST_CALLS_OF", "FROG_TEST_CALLS_FILE"
"""Environment variables: the project's folder, and the file to write."""
_seen: set[tuple[str, CodeType]] = set()


def trace_calls(root: str, path: str) -> Callable[[], None]:
    """Write calls of functions of files below `root/src/frog` from now on, in this and in new threads.

    Return a function that begins again, since a test may have ended it.
    """
    source = os.path.join(root, "src/frog/")

    def on_call(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(source) or code.co_name == "<module>":
            return
        node, _, phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
        name = node.partition("::")[0] if phase == "(setup)" else node.partition("[")[0]
        if not name or (name, code) in _seen:
            return
        _seen.add((name, code))
        function = getattr(code, "co_qualname", code.co_name).partition(".<locals>")[0]
        line = f"{name}\t{code.co_filename[len(root) + 1 :]}:{function}\n"
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.write(file, line.encode())
            os.close(file)
        except OSError:  # a program that may open no files
            return

    def begin() -> None:
        threading.settrace(on_call)
        sys.settrace(on_call)

    begin()
    return begin


def _run_next() -> None:
    own = os.path.dirname(os.path.realpath(__file__))
    places = [os.path.realpath(entry or os.curdir) for entry in sys.path]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path[places.index(own) + 1 :])
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if FOLDER in os.environ and FILE in os.environ:
        trace_calls(os.environ[FOLDER], os.environ[FILE])
    _run_next()
