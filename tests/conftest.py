"""Fixtures for all tests, their distribution over workers, and a report of their times."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path, PurePosixPath

import pytest
from harness import MODEL, RUN_FILE, Harness, made_once
from warm_frog import remember_env
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from frog.core.env import replace_env
from frog.core.processes import loading


def pytest_configure() -> None:
    """Prepare the environment of the tests and their processes: they receive Ctrl-C, and share the cores.

    A shell that starts the tests in the background makes them ignore Ctrl-C and Ctrl-\\, nohup the end of a terminal,
    and some supervisors SIGTERM. The ranks of torchrun, which handles all four, would not ignore them, and could not be
    forked like the others (tests/warm_frog).
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # else threads of parallel tests compete for cores: ten times slower
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _QUICK_IMPORTS not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([_QUICK_IMPORTS, *filter(None, paths)])
    remember_env()


_QUICK_IMPORTS = str(Path(__file__).parent / "quick_imports")
_DISTRIBUTED_SINGLY = ("e2e/", "test_solution_checks", "test_benchmarks")
_LONG = ("worlds/", "prove/", "launchers/", "slurm/", "demo/", "site/", "test_notebooks", *_DISTRIBUTED_SINGLY)
"""Slow tests in order: first whole files, then files whose tests are distributed one by one. The others follow."""


class _Scheduling(LoadScopeScheduling):
    """Runs a file's tests in one worker, because they share worlds, except for files that share none."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if any(part in nodeid for part in _DISTRIBUTED_SINGLY) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without garbage collection, which would look at millions of objects and find no garbage.

    Variables that an import sets are removed: with them, programs of the tests would not be forked (tests/warm_frog).
    """
    before = dict(os.environ)
    with loading():
        try:
            return (yield)
        finally:
            replace_env(before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that no worker waits for another at the end."""
    items.sort(key=lambda item: next((i for i, part in enumerate(_LONG) if part in item.nodeid), len(_LONG)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seconds per test folder, including set-up and tear-down, over all workers."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[str(PurePosixPath(report.nodeid.partition("::")[0]).parent)] += report.duration  # type: ignore[assignment]
    terminalreporter.section("seconds by folder")
    for folder, total in seconds.most_common():
        terminalreporter.write_line(f"{total:8.1f}  {folder}")


@pytest.fixture(scope="module", autouse=True)
def own_environment() -> Iterator[None]:
    """Restore the environment after each file: joining a world in the tests' own process sets variables.

    With them, programs of later files would not be forked (tests/warm_frog).
    """
    before = dict(os.environ)
    yield
    replace_env(before)


@pytest.fixture(scope="module")
def harness(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """Return a separate folder per file: another file's runs could have the same names."""
    root = tmp_path_factory.mktemp("harness") / "here"
    shutil.copytree(prepared, root)
    return Harness(root)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that every file's harness starts from."""
    return made_once(tmp_path_factory, "prepared", _prepare_rhymes)


@pytest.fixture(scope="session")
def default_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project's `data` folder with the default data set."""
    root = made_once(
        tmp_path_factory, "default", lambda root: Harness(root).run("frog", "data", "prepare", limit_s=720)
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
