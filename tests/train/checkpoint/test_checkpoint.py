"""Checkpoints of simulated worlds in this process: each rank has its own Saver, as in a real world."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from mutations import held_to_its_schema
from safetensors.torch import load_file, save_file
from torch import Tensor

from frog.core.errors import CheckpointError, RunError
from frog.core.files import put_in_place, sha256_file
from frog.core.runs.folder import RunFolder
from frog.core.runs.manifest import FileEntry, Piece, TensorEntry, manifest_hash
from frog.train.checkpoint import Saver, find_good, verify
from frog.train.checkpoint.load import open_checkpoint
from frog.train.checkpoint.save import _read_report, clean_up
from frog.train.checkpoint.staging import StagedFile, partition
from frog.train.comm.local_shard import LocalShard, rectangles, slice_shards


def some_tensors(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {
        "model/a": torch.randn(8, 4),
        "model/b": torch.randn(3),
        "model/half": torch.randn(5).to(torch.bfloat16),
        "optimizer/step": torch.tensor(7.0),
        "model/view": torch.randn(10)[2:8].view(2, 3),
    }


def copies(tensors: dict[str, Tensor], rank: int, world_size: int) -> list[LocalShard]:
    """Return replicated shards: every rank holds every tensor."""
    return [
        LocalShard(name, tensor, (0,) * tensor.dim(), tuple(tensor.shape), (rank, world_size))
        for name, tensor in tensors.items()
    ]


def savers(folder: RunFolder, world_size: int, tensors: dict[str, Tensor], **options: Any) -> list[Saver]:
    options = {"attempt": "x", "keep_last": 9, "timeout_s": 60, **options}
    own = {"rng": torch.arange(4, dtype=torch.uint8)}
    return [
        Saver(folder, rank, world_size, copies(tensors, rank, world_size), own, **options) for rank in range(world_size)
    ]


def save(folder: RunFolder, world_size: int, tensors: dict[str, Tensor], step: int = 10, **options: Any) -> None:
    world = savers(folder, world_size, tensors, **options)
    for rank, saver in enumerate(world):
        saver.save(step, {"step": step}, {"rng": torch.full((4,), rank, dtype=torch.uint8)})
    for saver in reversed(world):
        saver.wait()


def test_checkpoint_is_settled_on_all_ranks_only_after_rank_0_commits(tmp_path: Path) -> None:
    """If rank 0 is lost, the other ranks know that the checkpoint is incomplete."""
    folder = RunFolder(tmp_path)
    first, second = savers(folder, 2, some_tensors())
    assert first.is_settled
    assert second.is_settled
    own = {"rng": torch.zeros(4, dtype=torch.uint8)}
    second.save(10, {"step": 10}, own)
    second.wait()
    assert not second.is_settled
    first.save(10, {"step": 10}, own)
    first.wait()
    assert first.is_settled
    assert second.is_settled


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_one_process_reads_checkpoint_of_any_world_size(tmp_path: Path, world_size: int) -> None:
    folder, tensors = RunFolder(tmp_path), some_tensors()
    save(folder, world_size, tensors)
    files = sorted(entry.name for entry in folder.checkpoint(10).iterdir())
    assert files == ["manifest.json", *(f"rank_{rank}.safetensors" for rank in range(world_size))]
    checkpoint, passed_over = find_good(folder)
    assert checkpoint is not None
    assert passed_over == []
    target = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    checkpoint.load_into(target)
    assert all(torch.equal(target[name], tensors[name]) for name in tensors)
    for rank in range(world_size):
        own = checkpoint.load_own(rank)
        assert own is not None
        assert own["rng"].tolist() == [rank] * 4
    assert checkpoint.load_own(world_size) is None
    assert (checkpoint.step, checkpoint.world_size, checkpoint.state) == (10, world_size, {"step": 10})


def test_checkpoint_has_the_values_at_the_time_of_save(tmp_path: Path) -> None:
    folder, tensors = RunFolder(tmp_path), some_tensors()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    (saver,) = savers(folder, 1, tensors)
    saver.save(1, {}, {"rng": torch.zeros(4, dtype=torch.uint8)})
    for tensor in tensors.values():
        tensor.zero_()
    saver.wait()
    checkpoint, _ = find_good(folder)
    assert checkpoint is not None
    checkpoint.load_into(tensors)
    assert all(torch.equal(tensors[name], before[name]) for name in before)


def test_checkpoint_part_is_a_valid_safetensors_file(tmp_path: Path) -> None:
    tensors = some_tensors()
    part = StagedFile(tensors)
    part.stage(tensors)
    part.write(tmp_path / "part.safetensors")
    loaded = load_file(tmp_path / "part.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(
        torch.equal(loaded[name], tensors[name]) and loaded[name].dtype == tensors[name].dtype for name in tensors
    )


def test_partitions_are_complete_disjoint_and_even() -> None:
    tensors = {str(index): torch.zeros(1 + index % 7, 10) for index in range(40)}
    shares = partition(tensors, 4)
    assert sorted(name for share in shares for name in share) == sorted(tensors)
    loads = [sum(tensors[name].nbytes for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(tensor.nbytes for tensor in tensors.values())


def truncate(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 2)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def a_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def of_another_step(path: Path) -> None:
    shutil.rmtree(path.parent)
    shutil.copytree(path.parent.with_name("step_00000010"), path.parent)


def change_a_number(path: Path) -> None:
    manifest = json.loads(path.read_text())
    manifest["state"]["step"] += 1
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("rank_1.safetensors", truncate, "bytes, the manifest has"),
        ("rank_0.safetensors", flip_a_bit, "SHA-256"),
        ("rank_1.safetensors", Path.unlink, "missing"),
        ("manifest.json", Path.unlink, "incomplete: no manifest"),
        ("manifest.json", truncate, "not valid JSON"),
        ("manifest.json", change_a_number, "does not match its hash"),
        ("manifest.json", a_folder, "found a folder, expected a file"),
        ("manifest.json", a_dangling_link, "incomplete: no manifest"),
        ("manifest.json", a_link_to_itself, "cannot be read: Too many levels of symbolic links"),
        ("manifest.json", a_pipe, "found a named pipe, expected a file"),
        ("manifest.json", of_another_step, "$.step: found 10, but the folder is step_00000020"),
        ("rank_1.safetensors", a_folder, "missing, or not a regular file"),
        ("rank_1.safetensors", a_dangling_link, "missing, or not a regular file"),
        ("rank_1.safetensors", a_link_to_itself, "missing, or not a regular file"),
        ("rank_1.safetensors", a_pipe, "missing, or not a regular file"),
    ],
)
def test_damaged_checkpoint_is_reported_and_skipped(
    tmp_path: Path, name: str, damage: Callable[[Path], None], words: str
) -> None:
    folder, tensors = RunFolder(tmp_path), some_tensors()
    save(folder, 2, tensors, step=10)
    save(folder, 2, tensors, step=20)
    damage(folder.checkpoint(20) / name)
    checkpoint, passed_over = find_good(folder)
    assert checkpoint is not None
    assert checkpoint.step == 10
    assert len(passed_over) == 1
    assert "step_00000020" in passed_over[0].what
    assert words in passed_over[0].what


@contextlib.contextmanager
def forbidden(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a path without read permission: real permissions do not stop root, who often runs tests."""

    def asked(call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(name: Any, *args: Any, **options: Any) -> Any:
            if isinstance(name, str | Path) and path in (Path(name), *Path(name).parents):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))
            return call(name, *args, **options)

        return ask

    with monkeypatch.context() as patch:
        for module, name in (
            (os, "stat"),
            (os, "open"),
            (os, "listdir"),
            (os, "scandir"),
            (io, "open"),
            (builtins, "open"),
        ):
            patch.setattr(module, name, asked(getattr(module, name)))
        yield


@pytest.mark.parametrize("name", ["", "manifest.json", "rank_1.safetensors"])
def test_checkpoint_without_read_permission_is_reported_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder, tensors = RunFolder(tmp_path), some_tensors()
    save(folder, 2, tensors, step=10)
    save(folder, 2, tensors, step=20)
    with forbidden(folder.checkpoint(20) / name, monkeypatch):
        checkpoint, (damage,) = find_good(folder)
    assert checkpoint is not None
    assert (checkpoint.step, damage.step) == (10, 20)
    assert damage.what == f"{folder.checkpoint(20) / (name or 'manifest.json')}: cannot be read: Permission denied"


def test_unreadable_checkpoints_folder_raises_run_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    save(folder, 1, some_tensors())
    with forbidden(folder.checkpoints, monkeypatch), pytest.raises(RunError, match="cannot be read: Permission denied"):
        find_good(folder)


@pytest.mark.parametrize("what", ["a file", "a dangling link", "a folder"])
def test_checkpoint_replaces_a_foreign_file_or_folder_in_its_place(tmp_path: Path, what: str) -> None:
    """A file or folder that is not a checkpoint is skipped, then overwritten, and finally pruned."""
    folder, tensors = RunFolder(tmp_path), some_tensors()
    save(folder, 1, tensors, step=10)
    for step in (5, 20):
        path = folder.checkpoint(step)
        path.mkdir() if what == "a folder" else path.touch() if what == "a file" else path.symlink_to("nowhere")
    good, passed_over = find_good(folder)
    assert good is not None
    assert (good.step, len(passed_over)) == (10, 1)
    save(folder, 1, tensors, step=20, keep_last=2)
    assert folder.checkpoint_steps() == [10, 20]
    assert find_good(folder)[1] == []
    assert folder.unfinished_checkpoints() == []


@pytest.mark.slow
def test_manifest_with_any_wrong_key_is_skipped(tmp_path: Path) -> None:
    """The manifest has a matching hash, so that only the schema can reject it."""
    folder, tensors = RunFolder(tmp_path), {"model/a": torch.randn(8, 4), "model/b": torch.randn(3)}
    save(folder, 2, tensors, step=10)
    save(folder, 2, tensors, step=20)

    def with_its_hash(table: Any) -> bytes:
        return json.dumps({**table, "sha256": manifest_hash(table)} if isinstance(table, dict) else table).encode()

    def resume() -> None:
        checkpoint, passed_over = find_good(folder)
        assert checkpoint is not None
        if passed_over:
            assert checkpoint.step == 10
            raise CheckpointError(passed_over[0].what)
        checkpoint.load_into({name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
        checkpoint.load_own(0)

    path = folder.checkpoint(20) / "manifest.json"
    held_to_its_schema(path, resume, names="step_00000020", dump=with_its_hash)


def test_manifest_with_a_path_outside_the_folder_is_rejected(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    save(folder, 1, some_tensors())
    path = folder.checkpoint(10) / "manifest.json"
    table = json.loads(path.read_text())
    table["files"]["../outside"] = table["files"].pop("rank_0.safetensors")
    path.write_text(json.dumps({**table, "sha256": manifest_hash(table)}))
    assert "expected the name of a file in the same folder" in find_good(folder)[1][0].what


def test_file_with_unexpected_content_is_rejected(tmp_path: Path) -> None:
    """The hash matches, but the tensors do not."""
    folder = RunFolder(tmp_path)
    save(folder, 1, {"model/a": torch.zeros(8)})
    file = folder.checkpoint(10) / "rank_0.safetensors"
    save_file({"model/a": torch.zeros(4, 2)}, file)
    checkpoint = open_checkpoint(folder.checkpoint(10))
    checkpoint.manifest.files[file.name] = FileEntry(bytes=file.stat().st_size, sha256=sha256_file(file))
    verify(checkpoint)
    with pytest.raises(CheckpointError, match=r"model/a is torch.float32 of shape \[4, 2\], the manifest has"):
        checkpoint.load_into({"model/a": torch.zeros(8)})
    file.write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match=r"rank_0\.safetensors: cannot be read"):
        checkpoint.load_into({"model/a": torch.zeros(8)})


def test_part_report_with_any_wrong_key_is_rejected(tmp_path: Path) -> None:
    piece = {"file": "rank_0.safetensors", "key": "k", "offset": [0], "shape": [3]}
    tensors = {"a": {"shape": [3], "dtype": "float32", "pieces": [piece]}}
    good = {"file": {"bytes": 3, "sha256": "0" * 64}, "tensors": tensors}
    path = tmp_path / "rank_0.json"
    path.write_text(json.dumps(good))
    held_to_its_schema(path, lambda: _read_report(path))


def test_crash_before_the_manifest_leaves_no_checkpoint(tmp_path: Path) -> None:
    folder, tensors = RunFolder(tmp_path), some_tensors()
    first, _ = savers(folder, 2, tensors, timeout_s=0.3)
    first.save(10, {}, {"rng": torch.zeros(4, dtype=torch.uint8)})  # the second rank never saves
    with pytest.raises(CheckpointError, match="rank_1"):
        first.wait()
    assert folder.checkpoint_steps() == []
    (folder.checkpoints / ".step_00000010.y").mkdir(parents=True)
    clean_up(folder)
    assert list(folder.checkpoints.iterdir()) == []


class Killed(BaseException):
    """Simulates SIGKILL: no code handles it."""


@pytest.mark.parametrize("moment", range(5))
def test_crash_while_replacing_a_checkpoint_leaves_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """The process is killed before the first, second, ... change to the disk; only earlier changes are on disk."""
    folder, other = RunFolder(tmp_path / "here"), RunFolder(tmp_path / "other")
    old, new = some_tensors(1), some_tensors(2)
    save(folder, 2, old)
    save(other, 2, new)
    staging = folder.staged_checkpoint(10, "x")
    other.checkpoint(10).rename(staging)
    changes = 0

    def or_killed(act: Callable[..., None]) -> Callable[..., None]:
        def due(*args: Any, **options: Any) -> None:
            nonlocal changes
            changes += 1
            if changes > moment:
                raise Killed
            act(*args, **options)

        return due

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(Path, "rename", or_killed(Path.rename))
        for module, name in ((os, "fsync"), (os, "rmdir"), (os, "unlink")):
            patch.setattr(module, name, or_killed(getattr(module, name)))
        put_in_place(staging, folder.checkpoint(10))
    assert changes > moment, "the process was killed"
    clean_up(folder)
    checkpoint, passed_over = find_good(folder)
    assert checkpoint is not None
    assert passed_over == []
    found = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
    checkpoint.load_into(found)
    expected = old if moment < 2 else new
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert folder.unfinished_checkpoints() == []


def test_save_on_rank_0_does_not_wait_for_other_ranks(tmp_path: Path) -> None:
    """Collectives detect a lost rank; saving does not wait for it."""
    folder = RunFolder(tmp_path)
    first, second = savers(folder, 2, some_tensors(), timeout_s=1000)
    own = {"rng": torch.zeros(4, dtype=torch.uint8)}
    for step in (10, 20):
        first.save(step, {}, own)
    assert folder.checkpoint_steps() == []
    for step in (10, 20):
        second.save(step, {}, own)
    first.wait()
    assert folder.checkpoint_steps() == [10, 20]


def test_failed_run_does_not_wait_for_the_part_of_a_lost_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    first, second = savers(folder, 2, some_tensors(), timeout_s=1000)
    own = {"rng": torch.zeros(4, dtype=torch.uint8)}
    first.save(10, {}, own)
    monkeypatch.setattr("frog.train.checkpoint.save._PARTS_S", 50.0)
    threading.Timer(0.3, second.save, (10, {}, own)).start()
    first.abandon(60)
    assert folder.checkpoint_steps() == [10], "the saver waits for a part that arrives"
    monkeypatch.setattr("frog.train.checkpoint.save._PARTS_S", 0.1)
    first, _ = savers(folder, 2, some_tensors(), timeout_s=1000)
    first.save(20, {}, own)
    first.abandon(60)
    with pytest.raises(CheckpointError, match=r"no part from rank_1\n"):
        first.check()
    assert folder.checkpoint_steps() == [10]


def test_failed_checkpoint_does_not_affect_the_previous_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    first, second = savers(folder, 2, some_tensors())
    own = {"rng": torch.zeros(4, dtype=torch.uint8)}
    first.save(10, {}, own)
    first.wait_part()
    with monkeypatch.context() as patch:
        patch.setattr(first._staged, "write", lambda path: os.write(-1, b""))
        first.save(20, {}, own)
        first.wait_part()
    with pytest.raises(CheckpointError, match="step 20 could not be written"):
        first.check()
    second.save(10, {}, own)
    second.wait_part()
    first.abandon(60)
    assert folder.checkpoint_steps() == [10]


def test_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, tensors = RunFolder(tmp_path), some_tensors()
    save(folder, 1, tensors, step=10)
    (saver,) = savers(folder, 1, tensors)

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", no_space)
    saver.save(20, {}, {"rng": torch.zeros(4, dtype=torch.uint8)})
    saver.abandon(60)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        saver.check()
    assert "the last complete checkpoint is from step 10" in str(caught.value)
    monkeypatch.undo()
    checkpoint, passed_over = find_good(folder)
    assert checkpoint is not None
    assert (checkpoint.step, passed_over) == (10, [])
    files = {path.parent.name for path in folder.checkpoints.rglob("*") if path.is_file()}
    assert files == {"step_00000010"}, "unfinished files are removed immediately"


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    folder, tensors = RunFolder(tmp_path), some_tensors()
    for step in (1, 2, 3):
        save(folder, 1, tensors, step=step, keep_last=2)
    assert folder.checkpoint_steps() == [2, 3]


def test_checkpoint_of_another_model_is_rejected_with_names_and_shapes(tmp_path: Path) -> None:
    folder, tensors = RunFolder(tmp_path), some_tensors()
    save(folder, 1, tensors)
    checkpoint, _ = find_good(folder)
    assert checkpoint is not None
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_into({"model/a": torch.zeros(2, 2), "model/new": torch.zeros(1)})
    assert "model/new: not in the checkpoint" in str(caught.value)
    assert "model/a: shape (8, 4) in the checkpoint, (2, 2) in this model" in str(caught.value)


def test_pieces_are_assembled_to_a_tensor(tmp_path: Path) -> None:
    """Several ranks wrote the pieces of a tensor, as in sharded strategies."""
    folder, whole = RunFolder(tmp_path), torch.randn(6, 4)
    save(folder, 1, {"top": whole[:2].clone(), "left": whole[2:, :1].clone(), "right": whole[2:, 1:].clone()})
    checkpoint = open_checkpoint(folder.checkpoint(10))
    pieces = [
        Piece(file="rank_0.safetensors", key=key, offset=offset, shape=shape)
        for key, offset, shape in (("top", [0, 0], [2, 4]), ("left", [2, 0], [4, 1]), ("right", [2, 1], [4, 3]))
    ]
    checkpoint.manifest.tensors["whole"] = TensorEntry(shape=[6, 4], dtype="float32", pieces=pieces)
    target = torch.zeros(6, 4)
    checkpoint.load_into({"whole": target})
    assert torch.equal(target, whole)
    verify(checkpoint)


@pytest.mark.parametrize("shape", [(5, 7), (13,), (3, 4, 5), ()])
def test_rectangles_tile_any_run_of_elements(shape: tuple[int, ...]) -> None:
    whole = torch.arange(int(torch.tensor(shape).prod()) if shape else 1)
    for start in range(len(whole)):
        for count in range(len(whole) - start + 1):
            found = torch.full(shape, -1)
            for after, offset, shard in rectangles(shape, start, count):
                size = int(torch.tensor(shard).prod()) if shard else 1
                target = found[tuple(slice(a, a + n) for a, n in zip(offset, shard, strict=True))]
                assert bool((target == -1).all()), "two shards overlap"
                target.copy_(whole[start + after : start + after + size].view(shard))
            expected = torch.full((len(whole),), -1)
            expected[start : start + count] = whole[start : start + count]
            assert torch.equal(found.view(-1), expected)


def shards(whole: Tensor, num_columns: int, num_runs: int) -> list[list[LocalShard]]:
    """Return the shards of a matrix that is split by columns, and each part into runs of elements, as by zero."""
    ranks = []
    for column, part in enumerate(whole.chunk(num_columns, dim=1)):
        local = part.contiguous()
        corner = (0, column * local.shape[1])
        bounds = [local.numel() * run // num_runs for run in range(num_runs + 1)]
        for start, end in pairwise(bounds):
            run = local.view(-1)[start:end].clone()
            ranks.append(slice_shards("model/a", run, start, local.shape, corner, whole.shape, (0, 1)))
    return ranks


@pytest.mark.parametrize("written", [(1, 1), (2, 3), (1, 5)])
@pytest.mark.parametrize("read", [(1, 1), (3, 1), (2, 4)])
def test_checkpoint_loads_into_any_other_sharding(
    tmp_path: Path, written: tuple[int, int], read: tuple[int, int]
) -> None:
    folder, whole = RunFolder(tmp_path), torch.randn(7, 12)
    ranks = shards(whole, *written)
    world = [
        Saver(folder, rank, len(ranks), shards, {}, attempt="x", keep_last=1, timeout_s=60)
        for rank, shards in enumerate(ranks)
    ]
    for saver in world:
        saver.save(3, {}, {})
    for saver in world:
        saver.wait()
    checkpoint, _ = find_good(folder)
    assert checkpoint is not None
    for rank in shards(torch.zeros(7, 12), *read):
        checkpoint.load_into(rank)
        for shard in rank:
            window = tuple(slice(a, a + n) for a, n in zip(shard.offset, shard.tensor.shape, strict=True))
            assert torch.equal(shard.tensor, whole[window])


def test_gap_between_pieces_is_reported(tmp_path: Path) -> None:
    folder, whole = RunFolder(tmp_path), torch.randn(7, 12)
    (first, _) = shards(whole, 2, 1)
    saver = Saver(folder, 0, 1, first, {}, attempt="x", keep_last=1, timeout_s=60)
    saver.save(3, {}, {})
    saver.wait()
    checkpoint, _ = find_good(folder)
    assert checkpoint is not None
    with pytest.raises(CheckpointError, match="fill 42 of the 84 elements"):
        checkpoint.load_into({"model/a": torch.zeros(7, 12)})
