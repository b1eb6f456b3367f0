"""Split worlds of an elastic run: one continues, left-out ranks are ended, also on simulated nodes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from harness import MODEL
from in_process import write_run
from run_files import beat

from frog.core.env import SURVIVES, machine
from frog.core.errors import CommError, LostError
from frog.core.runs.folder import RunFolder
from frog.train.comm.elastic.agreement import LeftOut
from frog.train.elastic import join, survive
from frog.train.elastic.shared_order import SharedOrder
from frog.train.process import RankProcess
from frog.train.start import admit_others


@pytest.fixture
def others() -> Iterator[list[int]]:
    """Start processes that stay alive."""
    processes = [subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) for _ in range(3)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


def leave_beats(folder: RunFolder, pids: list[int], **changes: Any) -> None:
    folder.heartbeats.mkdir()
    for rank, pid in enumerate(pids):
        said = beat(rank=rank, pid=pid, host=f"node{rank}", machine=machine(), **changes)
        folder.heartbeat(rank).write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("members", "goes_on"),
    [((0,), False), ((3,), False), ((0, 1), True), ((0, 2), True), ((2, 3), False), ((1, 2, 3), True)],
)
def test_only_one_of_two_split_worlds_continues(
    members: tuple[int, ...], goes_on: bool, others: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks are alive on other nodes: each world considers the other lost."""
    monkeypatch.setattr(survive, "_GONE_S", 0)
    folder, own = RunFolder(tmp_path), [os.getpid() + n for n in range(len(members))]
    leave_beats(folder, [*own, *others[: 4 - len(members)]])
    run: Any = SimpleNamespace(folder=folder)
    if goes_on:
        survive._yield_to_larger_part(run, (0, 1, 2, 3), members, {*own})
        return
    with pytest.raises(LostError, match="ranks continue elsewhere"):
        survive._yield_to_larger_part(run, (0, 1, 2, 3), members, {*own})


@pytest.mark.parametrize("status", ["completed", "interrupted", "failed"])
def test_processes_that_only_end_do_not_count_as_another_world(
    status: str, others: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survive, "_GONE_S", 0)
    folder = RunFolder(tmp_path)
    leave_beats(folder, [os.getpid(), *others], status=status)
    run: Any = SimpleNamespace(folder=folder)
    survive._yield_to_larger_part(run, (0, 1, 2, 3), (0,), {os.getpid()})


@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_world_that_the_others_finished_without_does_not_continue(
    status: str, others: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are seen first while they run, and then at their end."""
    folder = RunFolder(tmp_path)
    leave_beats(folder, [os.getpid(), *others])

    def sleep(seconds: float) -> None:
        for path in folder.heartbeats.iterdir():
            path.write_text(path.read_text().replace('"running"', f'"{status}"'))

    monkeypatch.setattr("time.sleep", sleep)
    run: Any = SimpleNamespace(folder=folder)
    with pytest.raises(LostError, match=r"3 ranks continue elsewhere, 1 are here"):
        survive._yield_to_larger_part(run, (0, 1, 2, 3), (0,), {os.getpid()})


@pytest.mark.parametrize("here", [True, False])
def test_left_out_ranks_on_this_machine_are_ended_by_the_launcher(
    here: bool, others: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requests").mkdir()
    monkeypatch.setenv("FROG_LAUNCH_DIR", str(tmp_path))
    monkeypatch.setenv("FROG_NODE_NAME", "node0")
    folder = RunFolder(tmp_path)
    leave_beats(folder, others)
    if not here:
        folder.heartbeat(2).write_text(json.dumps(beat(rank=2, pid=others[2], host="node2", machine="another")))
    run: Any = SimpleNamespace(folder=folder)
    survive._end_left_out(run, [2], set())
    assert (tmp_path / "requests" / f"end_rank_{others[2]}.json").exists() == here


def test_continuing_ranks_are_not_ended_by_the_launcher(
    others: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 was left out, and rank 2 had its place when another rank was lost: the same ranks are checked again."""
    (tmp_path / "requests").mkdir()
    monkeypatch.setenv("FROG_LAUNCH_DIR", str(tmp_path))
    leave_beats(RunFolder(tmp_path), others)
    run: Any = SimpleNamespace(folder=RunFolder(tmp_path))
    survive._end_left_out(run, [1], {others[0], others[1]})
    assert not list((tmp_path / "requests").iterdir())


def parts(**changes: Any) -> Any:
    """Return a rank's state after step 4, from a world that no longer exists."""
    state = SimpleNamespace(step=4, scalars=lambda link: {"order_sha256": link})
    return SimpleNamespace(
        **{
            "state": state, "order": SharedOrder("", *([None] * 3)), "scores": {},
            "scored_step": None, "saved_step": 4, "owes_checkpoint": False,
            "saver": SimpleNamespace(is_settled=True, abandon=lambda grace_s: None), **changes,
        }
    )  # fmt: skip


def held(members: tuple[int, ...] = (0, 1), **changes: Any) -> Any:
    return SimpleNamespace(parts=parts(**changes), members=members, copies=None)


def member(members: tuple[int, ...] = (0, 1)) -> Any:
    return SimpleNamespace(members=members, survivors=SimpleNamespace(members=members), tries=Counter(), timeout_s=1)


def fails(run: Any, old: Any) -> bool:
    """True if another failure of a step without a lost rank ends the run on this rank."""
    with contextlib.suppress(CommError):
        survive._bound_tries(run, old, CommError("nothing from rank 1"))
        return False
    return True


def test_all_ranks_including_a_new_one_give_up_together() -> None:
    """A rank that continued alone would run the last steps after the run has failed."""
    first, newcomer = (SimpleNamespace(membership=member(), world=None) for _ in range(2))
    assert not fails(first, held())
    newcomer.membership.tries = Counter(survive._scalars(first, held())["tries"])
    ends = [(fails(first, held()), fails(newcomer, held())) for _ in range(2)]
    assert ends == [(False, False), (True, True)]


def test_world_that_cannot_be_entered_raises_comm_error() -> None:
    """The ranks of the new world have the state of a larger world."""
    run = SimpleNamespace(membership=member())
    assert [fails(run, held((0, 1, 2))) for _ in range(3)] == [False, False, True]


def test_loss_during_the_hash_comparison_closes_all_loaders(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []

    def check_equal(*_: Any) -> NoReturn:
        raise CommError("rank 1 has left")

    old, new = (held(close=lambda grace_s, which=which: left.append(which)) for which in ("old", "new"))
    kept = SimpleNamespace(scalars=survive._scalars(run, old), all_ranks_complete=False)
    run.membership.renew = lambda: SimpleNamespace(gather_rows=lambda row: row, is_main=False)
    run.config.strategy = SimpleNamespace(entry=SimpleNamespace(splits=("moments",)))
    old.parts.state.shards = list
    for name, does in {
        "build_mesh": None, "hand_over": kept, "_reopen": None, "_build": new,
    }.items():  # fmt: skip
        monkeypatch.setattr(survive, name, lambda *_, does=does: does)
    monkeypatch.setattr(survive, "_check_equal", check_equal)
    workload: Any = SimpleNamespace(renew_model=lambda: None)
    with pytest.raises(CommError):
        survive._enter(run, workload, old, 0)
    assert left == ["old", "new"]


@pytest.mark.parametrize("size", [1, 2])
def test_checkpoints_of_two_worlds_use_different_staging_folders(size: int) -> None:
    """Rank 0 of the previous world may still write or delete its own staging folder."""
    run: Any = SimpleNamespace(attempt="before", world=SimpleNamespace(size=size), membership=member())
    assert survive._scalars(run, held())["attempt"] != "before"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a run with the parts that `train_in_each_world` needs."""
    monkeypatch.setattr(survive, "introduce", lambda *_: None)
    monkeypatch.setattr(survive, "_build", lambda *_: held(close=lambda grace_s: None))
    log = SimpleNamespace(say=lambda line: None, note=lambda line: None)
    world, mesh = SimpleNamespace(is_main=True, barrier=lambda: None), SimpleNamespace(sizes={})
    config = SimpleNamespace(train=SimpleNamespace(global_batch_size=8, grad_accum=1))
    folder = RunFolder(Path())
    return SimpleNamespace(
        joins=False, log=log, mesh=mesh, membership=member(), world=world, config=config, folder=folder
    )


WORKLOAD: Any = SimpleNamespace(describe=lambda: ["a run"])


def test_rank_left_out_during_a_join_raises_lost_error(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank learns this while it admits a joining rank, outside torch's collectives."""
    why = "rank 1 of the group and others continue without this rank"

    def take_steps(*_: Any) -> NoReturn:
        raise LeftOut(why, "timed_out", 1)

    monkeypatch.setattr(survive, "take_steps", take_steps)
    with pytest.raises(LostError, match=why):
        survive.train_in_each_world(run, WORKLOAD)


def test_run_announces_elasticity_only_after_its_world_is_built(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank lost before the world is built ends the run; its replacement would find the last start's record."""
    survives = tmp_path / SURVIVES
    told: list[bool] = []

    def build(*_: Any) -> Any:
        told.append(survives.exists())
        return held(close=lambda grace_s: None)

    monkeypatch.setenv("FROG_LAUNCH_DIR", str(tmp_path))
    monkeypatch.setattr(survive, "_build", build)
    monkeypatch.setattr(survive, "take_steps", lambda *_: told.append(survives.exists()))
    admit_others(run, run.membership, RankProcess())
    survive.train_in_each_world(run, WORKLOAD)
    assert told == [False, True]


def test_joining_rank_uses_the_configuration_of_the_last_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the old learning rate, its weights would differ from those of the other ranks."""
    folder = RunFolder(tmp_path)
    seen: list[float] = []

    def start(learning_rate: float) -> None:
        write_run(folder, 1)
        run = json.loads(folder.run_json.read_text())
        config = {"model": MODEL, "data": {"sequence_length": 16}, "optimizer": {"learning_rate": learning_rate}}
        folder.run_json.write_text(json.dumps({**run, "config": config}))

    def come_in(*_: Any) -> Any:
        start(2e-3)
        return SimpleNamespace(
            renew=lambda: SimpleNamespace(rank=1, size=2, env=None),
            leave=lambda: None,
            survivors=SimpleNamespace(epoch=1),
        )

    def train(run: Any, workload: Any) -> None:
        seen.append(run.config.optimizer.learning_rate)

    for name in ("open_prepared", "open_events", "build_mesh", "admit_others", "Pretraining", "finish"):
        monkeypatch.setattr(join, name, lambda *_: None)
    monkeypatch.setattr(join, "join_membership", come_in)
    monkeypatch.setattr(join, "train_in_each_world", train)
    start(1e-3)
    join._join(folder, None, RankProcess())
    assert seen == [2e-3]
