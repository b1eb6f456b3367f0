"""Settings of torch's flight recorder, whose names differ between versions of torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from frog.observe.hook.frog_observer import _recorder_settings, _torch_version


def test_version_of_torch_is_read_without_importing_it() -> None:
    assert _torch_version(sys.path) == tuple(map(int, torch.__version__.split(".")[:2]))


def test_unknown_version_of_torch_gets_the_new_names(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_bytes(b"\xff\xfe")
    assert _torch_version(["", str(tmp_path), "/nowhere"]) == (9, 9)


@pytest.mark.parametrize(
    ("version", "size"), [((2, 6), "TORCH_NCCL_TRACE_BUFFER_SIZE"), ((2, 9), "TORCH_FR_BUFFER_SIZE")]
)
def test_only_the_name_that_torch_knows_is_set(version: tuple[int, int], size: str) -> None:
    settings = _recorder_settings(version, "/run/observed/attempt_0/nccl_trace_rank_")
    assert [name for name in settings if "SIZE" in name] == [size]
