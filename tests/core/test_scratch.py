"""Scratch folders are locked by their owner, or removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.core.files import scratch_folder


def test_scratch_folders_of_killed_launchers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders in use, and other files with similar names, stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, link, elsewhere = tmp_path / "frog-pods-dead", tmp_path / "frog-pods-link", tmp_path / "elsewhere"
    (dead / "pods" / "x").mkdir(parents=True)
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    (tmp_path / "frog-pods-file").touch()
    with scratch_folder("frog-pods-") as scratch:
        (scratch / "file").touch()
        with scratch_folder("frog-pods-"):
            pass
        assert sorted(tmp_path.iterdir()) == sorted([elsewhere, tmp_path / "frog-pods-file", link, scratch])
        assert (scratch / "file").exists()
    assert not scratch.exists()
