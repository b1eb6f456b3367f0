"""A plugin of pytest: `--affected FILE` runs the tests that `python -m tools.affected --write FILE` selected."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tools.affected.project import CASES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--affected", metavar="FILE", help="run what this file selects")


@functools.cache
def _read(path: str) -> dict[str, Any]:
    """Return the selection. pytest asks about every file, and the selection is the same for all."""
    selection: dict[str, Any] = json.loads(Path(path).read_text())
    return selection


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import test files of which nothing is selected."""
    if config.getoption("affected") is None or not collection_path.name.startswith("test_"):
        return None
    selection = _read(config.getoption("affected"))
    if selection["everything"] is not None or selection["all_fast"] or collection_path.is_dir():
        return None
    file = collection_path.relative_to(config.rootpath).as_posix()
    text = collection_path.read_text()
    has_cases = any(mark in text for mark in CASES)
    return None if has_cases or file in selection["files"] or file in selection["drawn"] else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect slow tests that are not selected, and fast ones too unless all fast tests run."""
    if config.getoption("affected") is None:
        return
    selection = _read(config.getoption("affected"))
    if selection["everything"] is not None:
        return
    chosen = [item for item in items if _is_selected(item, selection)]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


def _is_selected(item: pytest.Item, selection: dict[str, Any]) -> bool:
    if selection["all_fast"] and not (item.get_closest_marker("slow") or item.get_closest_marker("alone")):
        return True
    file, _, name = item.nodeid.partition("::")
    if any(item.get_closest_marker(mark) for mark in CASES):
        case = name.partition("[")[2].removesuffix("]")
        return case in selection["cases"] or case in selection["drawn"]
    return file in selection["files"] or file in selection["drawn"]
