"""A plugin of pytest that writes, for each test file, the files of Frog whose functions ran in its tests' process.

Code that runs while a module is imported does not count.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

SOURCE = str(Path(__file__).parents[3] / "src" / "frog")
_IS_FUNCTION = 1  # CO_OPTIMIZED: not the body of a class
_executed: defaultdict[str, set[str]] = defaultdict(set)
_now = {"test": "", "imports": 0}


def _profile(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if event not in ("call", "return") or not code.co_filename.startswith(SOURCE):
        return
    if code.co_name == "<module>":
        _now["imports"] += 1 if event == "call" else -1
    elif event == "call" and _now["imports"] == 0 and code.co_flags & _IS_FUNCTION:
        _executed[_now["test"]].add(code.co_filename)


def pytest_configure() -> None:
    sys.setprofile(_profile)
    threading.setprofile(_profile)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    if isinstance(collector, pytest.Module):
        _now["test"] = collector.nodeid
    result = yield
    _now["test"] = ""
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    _now["test"] = item.nodeid.partition("::")[0]


def pytest_unconfigure() -> None:
    sys.setprofile(None)
    threading.setprofile(None)
    found = {test: sorted(file for file in files if file.endswith(".py")) for test, files in _executed.items() if test}
    Path(os.environ["EXECUTED"]).write_text(json.dumps(found))
