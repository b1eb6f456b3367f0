"""Checkpoints read with numpy: shards are assembled, damaged checkpoints named, movement computed by the formula."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import Synthetic, make_run, weights, write_checkpoint

from frog.core.errors import CheckpointError
from frog.core.runs.folder import RunFolder
from frog.core.runs.manifest import manifest_hash
from frog.observe.view.checkpoint_reader import open_checkpoint, open_checkpoints
from frog.observe.view.weights import weight_movement


@pytest.mark.parametrize("world", [1, 2, 3])
def test_tensor_is_assembled_from_shards(tmp_path: Path, world: int) -> None:
    kind = Synthetic()
    path = write_checkpoint(RunFolder(tmp_path), 20, world, weights(20, kind))
    checkpoint = open_checkpoint(path)
    for name, value in weights(20, kind).items():
        assert np.array_equal(checkpoint.tensor(name), value)


def test_shards_along_second_dim_and_of_other_dtypes_are_assembled(tmp_path: Path) -> None:
    """A strategy that splits columns writes such shards, which `write_checkpoint` does not."""
    path = write_checkpoint(RunFolder(tmp_path), 1, 2, {"model/a": np.arange(6, dtype=np.int64).reshape(2, 3)})
    manifest = json.loads((path / "manifest.json").read_text())
    piece, other = manifest["tensors"]["model/a"]["pieces"]
    manifest["tensors"]["model/a"]["shape"] = [1, 6]
    piece["offset"], other["offset"] = [0, 3], [0, 0]
    (path / "manifest.json").write_text(json.dumps({**manifest, "sha256": manifest_hash(manifest)}))
    assert open_checkpoint(path).tensor("model/a").tolist() == [[3, 4, 5, 0, 1, 2]]


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda path: flip_bit(path / "rank_1.safetensors"), r"rank_1\.safetensors: its SHA-256"),
        (lambda path: (path / "rank_0.safetensors").write_bytes(b"short"), r"rank_0\.safetensors: 5 bytes"),
        (lambda path: (path / "rank_1.safetensors").unlink(), r"rank_1\.safetensors: missing"),
        (lambda path: (path / "manifest.json").unlink(), r"no manifest\.json"),
        (lambda path: (path / "manifest.json").write_text('{"step": 40, "fi'), r"not valid JSON"),
        (lambda path: (path / "manifest.json").write_text("[1]"), r"found a list, expected object"),
    ],
)
def test_damaged_checkpoint_is_named_and_skipped(tmp_path: Path, damage: object, complaint: str) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 60)]))
    damage(folder.checkpoint(40))  # type: ignore[operator]
    good, problems = open_checkpoints(folder)
    assert [checkpoint.step for checkpoint in good] == [20, 60]
    assert len(problems) == 1
    assert "step_00000040" in problems[0]
    with pytest.raises(CheckpointError, match=complaint):
        open_checkpoint(folder.checkpoint(40))
    movement = weight_movement(good)
    assert movement is not None
    assert movement.intervals == [(20, 60)]


def test_movement_is_the_relative_distance_of_each_tensor(tmp_path: Path) -> None:
    kind = Synthetic()
    good, _ = open_checkpoints(make_run(tmp_path / "r", kind))
    movement = weight_movement(good)
    assert movement is not None
    assert movement.intervals == [(20, 40), (40, 60)]
    assert movement.groups[0] == "model.embed_tokens.weight"
    assert movement.groups[-1] == "model.norm.weight"
    assert movement.groups[2] == "model.layers.0.self_attn.q_proj.weight"
    for row, name in enumerate(movement.groups):
        a, b = (weights(step, kind)[f"model/{name}"].astype(np.float64) for step in (40, 60))
        assert movement.values[row, 1] == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a), rel=1e-12)


def test_movement_of_large_model_is_by_layer(tmp_path: Path) -> None:
    kind = Synthetic(segments=[(1, 0, 40)], num_layers=11)
    good, _ = open_checkpoints(make_run(tmp_path / "r", kind))
    movement = weight_movement(good)
    assert movement is not None
    assert movement.by_layer
    layers = [f"model.layers.{index}" for index in range(11)]
    assert movement.groups == ["model.embed_tokens.weight", *layers, "model.norm.weight"]
    before, after = (
        np.concatenate([v.ravel().astype(np.float64) for n, v in weights(s, kind).items() if "layers.10." in n])
        for s in (20, 40)
    )
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert movement.values[11, 0] == pytest.approx(expected, rel=1e-12)


def test_single_checkpoint_has_no_movement(tmp_path: Path) -> None:
    good, _ = open_checkpoints(make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 20)])))
    assert len(good) == 1
    assert weight_movement(good) is None
