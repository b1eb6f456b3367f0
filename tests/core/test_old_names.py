"""Imports that users' files contain work under their names of 0.1.0."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings

import pytest
from harness import LIMIT_S

from frog.core.old_names import OLD_NAMES, new_name


@pytest.mark.parametrize(
    "name", ["frog.runs", "frog.runs.folder", "frog.runs.schema", "frog.config", "frog.parallel.schedules.schedule"]
)
def test_old_name_is_the_very_module_of_the_new_name(name: str) -> None:
    new = new_name(name)
    assert new is not None
    sys.modules.pop(name, None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        module = importlib.import_module(name)
    assert f"{name} is now {new}" in [str(warning.message) for warning in warned]
    assert module is importlib.import_module(new)
    assert module.__spec__ is not None
    assert module.__name__ == module.__spec__.name == new


def test_every_new_name_exists() -> None:
    assert [new for new in OLD_NAMES.values() if importlib.util.find_spec(new) is None] == []


def test_lines_of_a_file_for_0_1_0_run_unchanged() -> None:
    code = """
from frog.runs import read_run
from frog.runs.folder import RunFolder
from frog.runs.schema import CollectiveEvent
from frog.comm.process_group import register
from frog.comm.elastic.agreement import WorldChanged
from frog.model.transformer import TinyTransformer
import frog.config
import frog.train.model.transformer as transformer
assert frog.config.load_run_config and TinyTransformer is transformer.TinyTransformer
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "")
    assert [line for line in done.stderr.splitlines() if "DeprecationWarning" not in line] == []


def test_unknown_module_is_reported_by_its_own_name() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"frog\.ponds"):
        importlib.import_module("frog.ponds")
