"""What the observer reads from torch: counts, members of groups, and the lines of collectives, in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import LIMIT_S
from observe.programs import BEATS

from frog.core.runs.observed import Observed, read_observed
from frog.observe.environment import environment
from frog.observe.hook.frog_observer.recorder import Recorder

SETUP = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3, 2)
def reduce():
    dist.all_reduce(x)
"""
GROUPS = """
reduce()
own = dist.new_group([0], group_desc="mine")
for _ in range(3):
    dist.broadcast(x, 0, group=own)
"""
COUNTED = """
from frog_observer.recorder import Recorder
def counted():
    found = Recorder().collectives(with_frames=False)
    done = [entry["done"] for entry in found["entries"]]
    return all(done) and all(group["enqueued"] == group["completed"] for group in found["status"])
deadline = time.monotonic() + 60
while not counted():
    assert time.monotonic() < deadline, Recorder().collectives(with_frames=False)
    time.sleep(0.01)
"""
"""torch's recorder counts a collective as completed only after its call may have returned."""
ACCUMULATES = """
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for number in range(4):
    with ddp.no_sync():
        loss = ddp(x).sum()
        loss.backward()
    loss = ddp(x).sum()
    with ddp.no_sync():
        pass
    with ddp.no_sync():  # without effect
        loss.backward()
"""


def observe(code: str, tmp_path: Path) -> Observed:
    env = {**os.environ, **environment(tmp_path / "run"), "RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    (tmp_path / "my.py").write_text(SETUP + code)
    done = subprocess.run(
        [sys.executable, "my.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    found = read_observed(tmp_path / "run")[0][0]
    assert found.problems == []
    assert "frog" not in done.stderr.replace(str(tmp_path), ""), done.stderr
    return found


def test_collectives_of_a_failed_program_have_groups_sizes_and_lines(tmp_path: Path) -> None:
    found = observe(GROUPS + COUNTED + "raise ValueError", tmp_path)
    assert found.collectives is not None
    assert found.status is not None
    assert {name: (group.description, group.ranks) for name, group in found.collectives.groups.items()} == {
        "0": ("default_pg", [0]),
        "1": ("mine", [0]),
    }
    assert [(group.group, group.enqueued, group.completed) for group in found.status.groups] == [
        ("0", 1, 1),
        ("1", 3, 3),
    ]
    first, *others = found.collectives.entries
    assert (first.op, first.backend, first.seq, first.sizes, first.dtypes, first.done) == (
        "all_reduce",
        "gloo",
        1,
        [[3, 2]],
        ["Float"],
        True,
    )
    assert first.line is not None
    assert (Path(first.line.file).name, first.line.line, first.line.function) == ("my.py", 7, "reduce")
    assert [place.function for place in first.stack] == ["reduce", "<module>"]
    assert [(entry.group, entry.seq) for entry in others] == [("1", 1), ("1", 2), ("1", 3)]


def test_groups_and_no_sync_without_effect_are_known_after_the_program_destroys_its_groups(tmp_path: Path) -> None:
    found = observe(GROUPS + BEATS + ACCUMULATES + "dist.destroy_process_group()", tmp_path)
    assert found.collectives is not None
    assert found.status is not None
    assert (found.status.state, found.status.backend) == ("ended", "gloo")
    assert (found.collectives.frames, sorted(found.collectives.groups)) == (True, ["0", "1"])
    assert sum(entry.op == "broadcast" for entry in found.collectives.entries if entry.group == "1") == 3
    seen = found.status.no_sync
    assert seen is not None
    assert seen.line is not None
    assert (seen.entered, seen.without_effect) == (12, 4)
    assert (tmp_path / "my.py").read_text().splitlines()[seen.line.line - 1].endswith("# without effect")


def test_dump_with_lines_does_not_import_torchs_compiler(tmp_path: Path) -> None:
    code = """
reduce()
before = set(sys.modules)
def check():
    new = [name for name in set(sys.modules) - before if name.startswith("torch")]
    open("new", "w").write(repr((sorted(new), "_inductor" in vars(torch))))
import atexit; atexit.register(check)
raise ValueError
"""
    found = observe(code, tmp_path)
    assert found.collectives is not None
    assert found.collectives.frames
    assert (tmp_path / "new").read_text() == "([], False)"


def test_ring_keeps_the_last_2000_collectives_within_the_limit(tmp_path: Path) -> None:
    found = observe("for _ in range(2500): reduce()\nraise ValueError", tmp_path)
    assert found.collectives is not None
    assert (len(found.collectives.entries), found.collectives.entries[-1].seq) == (2000, 2500)
    assert (found.folder / "collectives.json").stat().st_size < 4 << 20


def test_huge_dump_keeps_the_last_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from frog.observe.hook.frog_observer import rank_files
    from frog.observe.hook.frog_observer.beat import Beats
    from frog.observe.hook.frog_observer.place import find_place

    place = find_place({"RANK": "0", "WORLD_SIZE": "1", "FROG_RUN_DIR": str(tmp_path)}, os.getpid(), ["python"])
    assert place is not None
    os.makedirs(place.folder)
    beats = Beats(place)
    entries = [{"seq": number, "op": "x" * 100} for number in range(2000)]

    def collectives(with_frames: bool) -> dict[str, Any]:
        return {"frames": with_frames, "groups": {}, "status": [], "entries": entries}

    monkeypatch.setattr(beats._recorder, "collectives", collectives)
    monkeypatch.setattr(rank_files, "MOST_BYTES", 10_000)
    beats._write_collectives(with_frames=True)
    data = (Path(place.folder) / "collectives.json").read_bytes()
    kept = json.loads(data)["entries"]
    assert len(data) <= 10_000
    assert (len(kept) > 20, kept[-1]["seq"]) == (True, 1999)


def test_recorders_of_gloo_and_nccl_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers by which a recorder counts its groups differ from their names."""
    gloo = {**entry("gloo:barrier", "2", 10, "scheduled", retired=True), "pg_id": 0}
    active = {**entry("nccl:all_reduce", "0", 30, "started", retired=False), "pg_id": 0}
    timed_out = {**entry("nccl:_all_gather_base", "0", 20, "scheduled", retired=True), "pg_id": 0}
    done = {**entry("nccl:broadcast", "0", 5, "completed", retired=True), "pg_id": 0}

    def recorder(*entries: dict[str, Any], **status: Any) -> Any:
        counts = {f"last_{name}_collective": value for name, value in status.items()}

        def dump(with_collectives: bool, only_active: bool) -> bytes:
            found = {"pg_status": {"0": counts}, "entries": entries if with_collectives else []}
            return json.dumps(found).encode()

        return dump

    module = SimpleNamespace(
        _dump_fr_trace_json=recorder(gloo, enqueued="1", completed="1", started="-1"),
        _dump_nccl_trace_json=recorder(done, active, timed_out, enqueued=3, completed=1, started=-1),
    )
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    found = Recorder().collectives(with_frames=False)
    assert [(group["group"], group["enqueued"], group["completed"]) for group in found["status"]] == [
        ("2", 1, 1),
        ("0", 3, 1),
    ]
    assert [(one["group"], one["backend"], one["op"], one["done"]) for one in found["entries"]] == [
        ("0", "nccl", "broadcast", True),
        ("2", "gloo", "barrier", True),
        ("0", "nccl", "_all_gather_base", False),
        ("0", "nccl", "all_reduce", False),
    ]


@pytest.mark.parametrize(
    ("retired", "completed"),
    [([True, True, True], 3), ([True, False, True], 1), ([True, True, False], 2), ([True, True], 1)],
    ids=["all", "not the second", "not the last", "last not recorded"],
)
def test_collectives_of_gloo_count_as_completed_when_they_are_retired(
    monkeypatch: pytest.MonkeyPatch, retired: list[bool], completed: int
) -> None:
    """The status in the recorder of gloo stays too low if a thread writes an older number late."""
    reads_of_entries = []

    def dump(with_collectives: bool, only_active: bool) -> bytes:
        reads_of_entries.extend([None] * with_collectives)
        status = {"last_enqueued_collective": "3", "last_completed_collective": "1"}
        entries = [
            {**entry("gloo:broadcast", "0", seq, "scheduled", retired=done), "pg_id": 0, "collective_seq_id": seq}
            for seq, done in enumerate(retired, 1)
        ]
        return json.dumps({"pg_status": {"0": status}, "entries": entries if with_collectives else []}).encode()

    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_fr_trace_json=dump))
    recorder = Recorder()
    recorder.counts()
    reads_of_entries.clear()
    assert recorder.counts() == [{"group": "0", "enqueued": 3, "completed": completed}]
    assert len(reads_of_entries) == 1
    assert Recorder().counts(exact=True) == recorder.counts()


def test_entries_of_gloo_are_not_read_while_a_group_proceeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch takes up to 0.2 s to return them: 4 % of a step, if most looks fall into a collective."""
    enqueued, completed, reads_of_entries = 0, 0, 0

    def dump(with_collectives: bool, only_active: bool) -> bytes:
        nonlocal reads_of_entries
        reads_of_entries += with_collectives
        status = {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}
        return json.dumps({"pg_status": {"0": status}, "entries": []}).encode()

    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_fr_trace_json=dump))
    recorder = Recorder()
    recorder.counts()  # reads the entries for the group's name
    reads_of_entries = 0
    for _ in range(3):
        enqueued, completed = enqueued + 5, enqueued + 4
        assert recorder.counts() == [{"group": "0", "enqueued": enqueued, "completed": completed}]
    assert reads_of_entries == 0
    recorder.counts()
    assert reads_of_entries == 1


def entry(name: str, group: str, created_ns: int, state: str, *, retired: bool) -> dict[str, Any]:
    fields = {"collective_seq_id": 1, "p2p_seq_id": 0, "is_p2p": False, "input_sizes": [], "input_dtypes": []}
    times = {"time_created_ns": created_ns, "time_discovered_started_ns": None, "time_discovered_completed_ns": None}
    return {**fields, **times, "profiling_name": name, "process_group": [group, ""], "state": state, "retired": retired}
