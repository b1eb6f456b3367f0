"""Fixtures for all tests; how tests are shared out to workers; and where their time went."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from harness import MODEL, RUN_FILE, Harness
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling


def pytest_configure() -> None:
    """What the tests, and all they start, have of their surroundings: they hear Ctrl-C, and share the cores.

    A shell that starts the tests in the background makes them deaf to it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:  # else threads wait for each other's cores, ten times as long
        os.environ.setdefault("OMP_NUM_THREADS", "1")


_APART = ("e2e/", "test_zoo", "test_benchmarks")
_LONG = ("worlds/", "prove/", "launchers/", "slurm/", "demo/", "site/", "test_notebooks", *_APART)
"""What takes minutes: first the files, then what is shared out by the test. The rest fills up."""


class _Scheduling(LoadScopeScheduling):
    """The tests of a file run in one worker, since they share worlds; those of some files share none."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if any(part in nodeid for part in _APART) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker waits for the other at the end."""
    items.sort(key=lambda item: next((i for i, part in enumerate(_LONG) if part in item.nodeid), len(_LONG)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds by folder of tests, set-up and tear-down included, over all workers."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[str(PurePosixPath(report.nodeid.partition("::")[0]).parent)] += report.duration  # type: ignore[assignment]
    terminalreporter.section("seconds by folder")
    for folder, total in seconds.most_common():
        terminalreporter.write_line(f"{total:8.1f}  {folder}")


@pytest.fixture(scope="module")
def harness(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """A file's own folder: what the tests of another file have left there would be met as a run of the same name."""
    root = tmp_path_factory.mktemp("harness") / "here"
    shutil.copytree(prepared, root)
    return Harness(root)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the harness of every file of tests begins with."""
    return _made_once(tmp_path_factory, "prepared", _prepare_rhymes)


@pytest.fixture(scope="session")
def default_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder `data` with the default data set in it."""
    root = _made_once(
        tmp_path_factory, "default", lambda root: Harness(root).run("frog", "data", "prepare", timeout=240)
    )
    return root / "data"


def _prepare_rhymes(root: Path) -> None:
    (root / "config.json").write_text(json.dumps(MODEL))
    (root / "run.toml").write_text(RUN_FILE)
    lines = "".join(
        f"{n} frogs sat on a log; {n % 7} jumped, and {n % 5} sang of the {n % 11}th pond.\n\n" for n in range(4000)
    )
    (root / "rhymes.txt").write_text(lines)
    Harness(root).run("frog", "data", "prepare", "--corpus", "rhymes.txt", "--name", "rhymes", "--vocab-size", "300")


def _made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first worker that asks for it makes, for all of them."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, whole = base / name, base / f"{name}.whole"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed at it
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder
