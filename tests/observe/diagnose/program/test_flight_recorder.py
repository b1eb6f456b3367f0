"""Dumps of torch's flight recorder, from NCCL and gloo, and what the diagnosis makes of them."""

from __future__ import annotations

import argparse
import json
import pickle
from pathlib import Path

import pytest
from nccl_dumps import Calls, dump, write_dumps

from frog.core.errors import RunError
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.gather import gather
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder

DONE: Calls = [("all_reduce", 64, "completed", 31)] * 3
WAITS: Calls = [("all_reduce", 64, "started", 31)]


def found_in(folder: Path) -> tuple[str, int | None, str | None, str | None]:
    found: Diagnosis = diagnose_folder(folder)
    return found.fault, found.rank, found.line, found.peer_line


def test_other_operation_is_named_with_both_lines(tmp_path: Path) -> None:
    barrier: Calls = [("barrier", 1, "started", 40)]
    write_dumps(tmp_path, {0: DONE + WAITS, 1: DONE + WAITS, 2: DONE + barrier})
    assert found_in(tmp_path) == ("batches", 2, "train.py:40 (train)", "train.py:31 (train)")


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.3", "2.10"])
@pytest.mark.parametrize("name", ["nccl_trace_rank_", "comm_lib_trace_rank_", "job17_"])
def test_rank_that_never_called_is_found_in_any_version(tmp_path: Path, version: str, name: str) -> None:
    write_dumps(tmp_path, {0: DONE + WAITS, 1: DONE + WAITS, 2: DONE}, name=name, version=version)
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank) == ("stuck", 2)
    assert found.collective is not None
    assert found.collective.startswith("all_reduce of 64")
    assert found.collective.endswith("(collective 4 of all ranks), called at train.py:31 (train)")


def test_missing_dump_is_evidence(tmp_path: Path) -> None:
    write_dumps(tmp_path, {0: DONE + WAITS, 1: DONE + WAITS, 3: DONE + WAITS}, members=[0, 1, 2, 3])
    assert found_in(tmp_path)[:2] == ("gone", 2)


def test_dump_that_was_not_finished_is_named(tmp_path: Path) -> None:
    write_dumps(tmp_path, {0: DONE + WAITS, 1: DONE + WAITS})
    file = tmp_path / "nccl_trace_rank_1"
    whole = file.read_bytes()
    for size in (len(whole) // 4, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        problem = "nccl_trace_rank_1: a flight-recorder dump that is damaged or incomplete; it was not read"
        assert gather(tmp_path).problems == [problem]
    (tmp_path / "nccl_trace_rank_0").unlink()
    with pytest.raises(RunError, match="no evidence of a run; nccl_trace_rank_1: a flight-recorder dump that is"):
        gather(tmp_path)


def test_kernel_that_one_device_never_started_is_its_ranks(tmp_path: Path) -> None:
    scheduled: Calls = [("all_reduce", 64, "scheduled", 31)]
    write_dumps(tmp_path, {0: DONE + WAITS, 1: DONE + scheduled, 2: DONE + WAITS})
    assert found_in(tmp_path)[:2] == ("busy", 1)


def test_collective_that_all_started_blames_the_network(tmp_path: Path) -> None:
    write_dumps(tmp_path, {0: DONE + WAITS, 1: DONE + WAITS})
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank, found.certain) == ("network", None, False)


def test_groups_are_matched_by_members_under_any_name(tmp_path: Path) -> None:
    for rank, group, calls in ((0, "7", DONE + WAITS), (2, "5", DONE)):
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump(calls, [0, 2], group), 4))
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.rank) == ("stuck", 2)
    assert "collective 4 of" in (found.collective or "")


def test_json_dump_without_groups_or_lines_is_read(tmp_path: Path) -> None:
    for rank, calls in ((0, DONE + WAITS), (1, DONE)):
        content = dump(calls, [])
        content["pg_config"] = {"": {"desc": "", "name": "", "ranks": "[]"}}
        for each in content["entries"]:
            del each["frames"]
        (tmp_path / f"fr_{rank}.json").write_text(json.dumps(content))
    assert found_in(tmp_path)[:2] == ("stuck", 1)


def test_ring_buffers_that_begin_at_different_calls_are_compared_where_they_overlap(tmp_path: Path) -> None:
    write_dumps(tmp_path, {0: DONE * 5 + WAITS, 1: DONE * 5 + WAITS, 2: DONE * 5})
    path = tmp_path / "nccl_trace_rank_1"
    content = pickle.loads(path.read_bytes())
    content["entries"] = content["entries"][9:]
    path.write_bytes(pickle.dumps(content))
    assert found_in(tmp_path)[:2] == ("stuck", 2)


def test_torchs_own_analyser_finds_the_same_collective(tmp_path: Path) -> None:
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.loader import read_dir

    order: Calls = [("all_reduce", 12, "started", 20), ("all_reduce", 7, "scheduled", 20)]
    write_dumps(tmp_path, {0: DONE + order, 1: DONE + order, 2: DONE + order[::-1]})
    args = argparse.Namespace(
        prefix="nccl_trace_rank_", trace_dir=str(tmp_path), verbose=False, just_print_entries=False,
        allow_incomplete_ranks=False, mismatch_cap=10, selected_ranks=None, pg_filters=None,
    )  # fmt: skip
    details, version = read_dir(args)
    database = build_db(details, args, version)
    torchs = next(each for each in database.collectives if not each.pass_check)
    found = diagnose_folder(tmp_path)
    assert torchs.collective_seq_id == 4
    assert set(torchs.mismatch_collectives or {}) == {2}
    assert (found.fault, found.rank) == ("order", 2)
    assert "collective 4 of all ranks differs" in found.finding


def test_hostile_pickle_is_no_evidence(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "evil",)  # type: ignore[return-value]

    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [], "profiling_name": Hostile()}))
    with pytest.raises(RunError, match="no evidence"):
        gather(tmp_path)
    assert not (tmp_path / "evil").exists()
