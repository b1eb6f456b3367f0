"""A plugin of pytest: `--results FILE` writes which tests passed and failed, and which of them started a process.

A test started a process if one began while it or one of its fixtures ran. Tests marked `slow` or `alone` count as such.
A crashed worker and a file that cannot be imported are failures of no process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
"""Events of `sys.audit` that begin a process."""


@dataclass
class Results:
    """The results of a session, by the ids of its tests."""

    passed: list[str] = field(default_factory=list)
    skipped: int = 0
    failed: dict[str, bool] = field(default_factory=dict)
    """True for tests that started a process."""
    exit_code: int = 3


def read_results(path: Path) -> Results:
    return Results(**json.loads(path.read_text()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", metavar="FILE", help="write the results of all tests to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Processes(), "processes of tests")
    if config.getoption("results") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Path(config.getoption("results")), config), "results of tests")


class _Processes:
    """Adds `starts_process` to the report of each test."""

    def __init__(self) -> None:
        self._num_started = 0
        self._before = 0
        self._fixtures: set[int] = set()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _: tuple[Any, ...]) -> None:
        if event in _STARTS:
            self._num_started += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        before = self._num_started
        try:
            return (yield)
        finally:
            if self._num_started > before:
                self._fixtures.add(id(fixturedef))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        self._before = self._num_started

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        began = self._num_started > self._before
        is_marked = any(item.get_closest_marker(mark) for mark in ("slow", "alone"))
        shares_one = any(id(one) in self._fixtures for one in _fixtures_of(item))
        vars(report)["starts_process"] = began or is_marked or shares_one
        return report


def _fixtures_of(item: pytest.Item) -> list[pytest.FixtureDef[Any]]:
    info = getattr(item, "_fixtureinfo", None)
    return [] if info is None else [one for of_name in info.name2fixturedefs.values() for one in of_name]


class _Writer:
    """Collects the reports of all workers, and names each failed test at once: the summary may come much later."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path, self._config = path, config
        self._results = Results()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        results = self._results
        if report.failed:
            before = results.failed.get(report.nodeid, True)
            results.failed[report.nodeid] = before and getattr(report, "starts_process", False)
            if (terminal := self._config.pluginmanager.get_plugin("terminalreporter")) is not None:
                terminal.write_line(f"\nfailed: {report.nodeid}")
        elif report.when == "call" and report.passed:
            results.passed.append(report.nodeid)
        elif report.skipped:
            results.skipped += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._results.failed[report.nodeid] = False

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._results.exit_code = int(exitstatus)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(asdict(self._results)))
