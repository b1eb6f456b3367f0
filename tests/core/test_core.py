from __future__ import annotations

import argparse
import errno
import gc
import json
import os
import sys
from pathlib import Path

import pytest

from frog.cli import _run
from frog.core.errors import RunError, UsageError
from frog.core.files import link_folder, open_lock, sha256_file, write_atomic, write_json
from frog.core.processes import is_alive, loading
from frog.core.runs.folder import RunFolder, check_output, find_run
from frog.core.seeds import derive_seed


def test_device_or_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    link, pipe = tmp_path / "full", tmp_path / "pipe"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_atomic(link, "too much")
    assert link.is_symlink()
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device or address"):
        write_atomic(pipe, "unread")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "to you")
    assert os.read(reader, 100) == b"to you"
    os.close(reader)
    assert pipe.is_fifo()


def test_write_atomic_replaces_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, "old")

    def fail(*_: object) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_folder_path_is_rejected_as_a_file_name() -> None:
    with pytest.raises(IsADirectoryError):
        write_atomic(Path("."), b"")


def test_lock_file_is_not_created_through_a_link(tmp_path: Path) -> None:
    kept, link, pipe = tmp_path / "kept", tmp_path / "link", tmp_path / "pipe"
    kept.write_text("kept")
    link.symlink_to(kept)
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path):
        with pytest.raises(OSError, match=path.name):
            open_lock(path)
    os.close(open_lock(tmp_path / "new"))
    assert (tmp_path / "new").is_file()


def test_write_atomic_survives_a_rename_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 renames a checkpoint's folder as soon as every rank's part is in it."""
    staging, whole, replace = tmp_path / "staging", tmp_path / "whole", os.replace

    def replace_and_rename(source: Path, target: Path) -> None:
        replace(source, target)
        staging.rename(whole)

    monkeypatch.setattr(os, "replace", replace_and_rename)
    write_json(staging / "part.json", [1])
    assert os.listdir(whole) == ["part.json"]
    assert os.listdir(tmp_path) == ["whole"]


def test_write_atomic_can_keep_the_file_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "first", replace=False)
    write_atomic(path, "second", replace=False)
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("file", "first")]


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no /proc")
@pytest.mark.parametrize(
    ("error", "alive"), [(FileNotFoundError(), False), (OSError(errno.EMFILE, "Too many open files"), True)]
)
def test_process_counts_as_alive_if_its_state_is_unreadable(
    monkeypatch: pytest.MonkeyPatch, error: OSError, alive: bool
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Path, "read_text", fail)
    assert is_alive(os.getpid()) == alive


def test_sha256_file_returns_the_hash_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_file(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_link_folder_points_to_the_latest_and_keeps_real_folders(tmp_path: Path) -> None:
    for name in ("a", "b", "real"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "who").write_text(name)
    assert link_folder(tmp_path / "logs", tmp_path / "a")
    assert link_folder(tmp_path / "logs", tmp_path / "b")
    assert (tmp_path / "logs" / "who").read_text() == "b"
    assert not link_folder(tmp_path / "real", tmp_path / "a")
    assert (tmp_path / "real" / "who").read_text() == "real"


def test_seeds_depend_on_names() -> None:
    assert derive_seed(1, "init") == derive_seed(1, "init")
    assert (
        len({derive_seed(1, "init"), derive_seed(2, "init"), derive_seed(1, "rank", 0), derive_seed(1, "rank", 1)}) == 4
    )
    assert 0 <= derive_seed(7, "x") < 2**63


def test_run_folder_has_paths_and_sorted_steps(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.checkpoint_steps() == []
    for name in ("step_00000100", "step_00000020", ".step_00000300.abc", "other"):
        (folder.checkpoints / name).mkdir(parents=True)
    assert folder.checkpoint_steps() == [20, 100]
    assert folder.checkpoint(20).name == "step_00000020"
    assert folder.rank_log(2) == tmp_path / "run" / "logs" / "rank_2" / "train.log"


def run_json(name: str) -> dict[str, object]:
    empty = {"created": "", "argv": [], "config": {}, "num_parameters": 0, "data": None, "versions": {}, "segments": []}
    return {"format": 2, "name": name, **empty}


def test_find_run_accepts_names_paths_and_latest(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with pytest.raises(RunError, match="no runs"):
        find_run("latest", runs)
    for age, name in enumerate(("old", "new")):
        write_json(runs / name / "run.json", run_json(name))
        os.utime(runs / name / "run.json", (age, age))
    assert find_run("latest", runs).path.name == "new"
    assert find_run("old", runs).read_run_json().name == "old"
    assert find_run(str(runs / "old"), runs).path.name == "old"
    for text in ("absent", "absent" * 100):
        with pytest.raises(RunError, match="absent"):
            find_run(text, runs)
    (runs / "old" / "run.json").write_text("{")
    with pytest.raises(RunError, match="not valid JSON"):
        find_run("old", runs).read_run_json()
    (runs / "old" / "run.json").write_text(json.dumps([]))
    with pytest.raises(RunError, match="expected object"):
        find_run("old", runs).read_run_json()


def test_loaded_modules_are_never_garbage_collected() -> None:
    with loading():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    assert gc.isenabled()
    collected = set(map(id, gc.get_objects()))
    gc.unfreeze()
    assert not collected & set(map(id, kept)), "the collector ignores them"
    assert set(map(id, kept)) <= set(map(id, gc.get_objects())), "it would have looked at them"


def test_output_cannot_replace_a_file_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    (run / "checkpoints" / "step_00000001").mkdir(parents=True)
    kept = [run / "run.json", run / "record.json", run / "checkpoints" / "step_00000001" / "manifest.json"]
    for path in kept:
        path.write_text("{}")
    (tmp_path / "link").symlink_to(run)
    for path in (*kept, tmp_path / "link" / "record.json", run / "events" / ".." / "record.json"):
        with pytest.raises(UsageError, match="is a file of the run in"):
            check_output(path)
    for path in (run / "report.html", run / "events" / "new.html", tmp_path / "record.json"):
        check_output(path)


def test_command_reports_memory_errors(capsys: pytest.CaptureFixture[str]) -> None:
    def handler(args: argparse.Namespace) -> int:
        raise MemoryError

    assert _run(argparse.Namespace(handler=handler)) == 1
    assert capsys.readouterr().err.startswith("error: not enough memory\n  try: ")
