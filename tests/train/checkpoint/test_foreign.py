"""Checkpoints of other programs: read in every format, compared tensor by tensor."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from frog.core.errors import CheckpointError
from frog.train.checkpoint.foreign import checkpoint_files, compare, read_values

WEIGHT = torch.arange(6.0).reshape(2, 3)


def test_values_of_torch_save_have_their_paths(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 2)
    torch.save({"model": layer, "optimizer": {"state": [{"step": 3}]}, "lr": 0.1}, tmp_path / "a.pt")
    values = read_values(tmp_path / "a.pt")
    assert set(values) == {"model.weight", "model.bias", "optimizer.state.0.step", "lr"}
    assert torch.equal(values["model.weight"], layer.weight)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_values_of_safetensors_and_of_distributed_checkpoints_are_read(tmp_path: Path) -> None:
    save_file({"w": WEIGHT}, tmp_path / "model.safetensors")
    dcp.save({"model": {"w": WEIGHT}}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert torch.equal(read_values(tmp_path / "model.safetensors")["w"], WEIGHT)
    assert torch.equal(read_values(tmp_path / "dcp")["model.w"], WEIGHT)


def test_newest_checkpoint_is_found_with_its_shards(tmp_path: Path) -> None:
    for step, name in enumerate(("step-20/model.safetensors", "step-100/rank_0.pt", "step-100/rank_1.pt"), start=1):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
        os.utime(path, (step, step))
    (tmp_path / "step-100/log.txt").write_text("newer, but not a checkpoint")
    assert [path.name for path in checkpoint_files(tmp_path)] == ["rank_0.pt", "rank_1.pt"]
    assert checkpoint_files(tmp_path / "step-20/model.safetensors") == [tmp_path / "step-20/model.safetensors"]
    assert checkpoint_files(tmp_path / "none") == []


def folders(tmp_path: Path, first: object, second: object) -> tuple[Path, Path, list[Path]]:
    for name, content in (("a", first), ("b", second)):
        (tmp_path / name).mkdir()
        torch.save(content, tmp_path / name / "x.pt")
    return tmp_path / "a", tmp_path / "b", [tmp_path / "a/x.pt"]


def test_equal_checkpoints_are_equal_even_with_nan(tmp_path: Path) -> None:
    content = {"w": torch.tensor([1.0, math.nan]), "n": torch.tensor(3), "time": 1.0}
    found = compare(*folders(tmp_path, content, {**content, "time": 2.0}))
    assert found.is_equal
    assert (found.num_equal, found.other) == (2, ["time"])


def test_each_kind_of_difference_is_reported(tmp_path: Path) -> None:
    first = {"w": WEIGHT, "shape": WEIGHT, "type": WEIGHT, "nan": WEIGHT, "left": WEIGHT}
    second = {"w": WEIGHT + 0.5, "shape": WEIGHT[0], "type": WEIGHT.double(), "nan": WEIGHT * math.nan, "right": WEIGHT}
    found = compare(*folders(tmp_path, first, second))
    assert not found.is_equal
    assert found.different == {"w": 0.5, "shape": math.inf, "type": math.inf, "nan": math.inf}
    assert found.missing == ["left", "right"]


def test_missing_file_of_a_checkpoint_is_a_difference(tmp_path: Path) -> None:
    first, second, files = folders(tmp_path, {}, {})
    (second / "x.pt").unlink()
    assert compare(first, second, files).missing == [f"{second / 'x.pt'}: the whole file"]


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 torn"])
def test_damaged_checkpoint_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.pt: cannot be read as a checkpoint"):
        read_values(tmp_path / "a.pt")
