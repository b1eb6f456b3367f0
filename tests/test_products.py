"""The hooks of launch and of the report: what the products register, and what happens without them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from harness import LIMIT_S

import frog
from frog import hooks
from frog.core.errors import UsageError
from frog.core.runs.folder import RunFolder
from frog.hooks import Hook
from frog.launch.node_agents import Options, Starter
from frog.launch.nodes import parse_nodes
from frog.launch.rank_output import RankOutput
from frog.products import register_products

HOOKS = sorted(name for name, value in vars(hooks).items() if isinstance(value, Hook))


@pytest.fixture
def unregistered() -> ModuleType:
    """Another copy of frog.hooks, in which nothing is registered."""
    spec = importlib.util.spec_from_file_location("unregistered_hooks", hooks.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def without_products(unregistered: ModuleType) -> Iterator[None]:
    for name in HOOKS:
        getattr(hooks, name).register(getattr(unregistered, name))
    yield
    register_products()


def environment(folder: Path, options: Options) -> dict[str, str]:
    starter = Starter(parse_nodes("1x2"), [], options, folder, None)
    starter.output = RankOutput(RunFolder(folder))
    return starter.environment(0)


def test_every_hook_has_a_product() -> None:
    code = (
        "import frog\nfrom frog import hooks\n"
        "hooks = {name: hook for name, hook in vars(hooks).items() if isinstance(hook, hooks.Hook)}\n"
        "print(sorted(name for name, hook in hooks.items() if hook._function.__module__ == 'frog.products'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.strip() == str(HOOKS)


def test_products_are_not_imported_before_they_are_called() -> None:
    code = "import sys, frog\nprint(*sorted({name.split('.')[1] for name in sys.modules if name.startswith('frog.')}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.split() == ["core", "hooks", "products"]


def test_ranks_are_observed_and_get_simulated_gpus(tmp_path: Path) -> None:
    found = environment(tmp_path, Options(simulate_gpus=2))
    assert found["FROG_RUN_DIR"] == str(tmp_path)
    assert found["FROG_HOOKS"] == "frog_observer,frog_simulated_gpus"
    assert found["FROG_SIMULATE_GPUS"] == "2"
    assert "FROG_RUN_DIR" not in environment(tmp_path, Options(observe=False))


@pytest.mark.usefixtures("without_products")
def test_ranks_without_an_observer_run_unobserved(tmp_path: Path) -> None:
    assert "FROG_HOOKS" not in environment(tmp_path, Options())
    with pytest.raises(UsageError, match=r"frog\.observe is not registered"):
        environment(tmp_path, Options(simulate_gpus=2))


def test_hang_without_a_diagnosis_has_no_line(unregistered: Any, tmp_path: Path) -> None:
    assert unregistered.describe_hang(tmp_path) == ""


def test_manifest_without_kubernetes_is_an_error(unregistered: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"frog\.cluster is not registered"):
        unregistered.run_manifest(tmp_path / "a.yaml", [])


def test_record_is_a_name_of_frog() -> None:
    assert frog.record.__module__ == "frog.observe.record"
