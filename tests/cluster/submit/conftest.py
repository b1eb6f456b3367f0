"""A folder to create bundles in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bundle_harness import CLUSTERS
from harness import Harness


@pytest.fixture
def here(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with a tiny run, its prepared data, and the profiles."""
    for name in ("config.json", "run.toml"):
        shutil.copy(harness.root / name, tmp_path / name)
    shutil.copytree(harness.root / "data", tmp_path / "data")
    shutil.copytree(CLUSTERS, tmp_path / "config" / "clusters")
    monkeypatch.chdir(tmp_path)
    return tmp_path
