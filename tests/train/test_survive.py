"""Which of two worlds of a run goes on, and who ends a rank that was left out, also where nodes are pretended ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from run_files import beat

from frog.collectives.rendezvous import machine
from frog.core.errors import LostError
from frog.core.runfolder import RunFolder
from frog.train import survive
from frog.train.order import SharedOrder


@pytest.fixture
def others() -> Iterator[list[int]]:
    """Processes that live."""
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
def test_of_two_worlds_one_goes_on(
    members: tuple[int, ...], goes_on: bool, others: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks are alive, on nodes of other names: each world takes the other for lost."""
    monkeypatch.setattr(survive, "_GONE_S", 0)
    folder, own = RunFolder(tmp_path), [os.getpid() + n for n in range(len(members))]
    leave_beats(folder, [*own, *others[: 4 - len(members)]])
    world = SimpleNamespace(gather_rows=lambda row: torch.tensor([own]))
    run: Any = SimpleNamespace(folder=folder, world=world)
    if goes_on:
        survive._give_way(run, (0, 1, 2, 3), members)
        return
    with pytest.raises(LostError, match="others of its run went on"):
        survive._give_way(run, (0, 1, 2, 3), members)


@pytest.mark.parametrize("here", [True, False])
def test_the_launcher_is_to_end_who_was_left_out_on_any_node_of_this_machine(
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
    survive._end_left_out(run, [2])
    assert (tmp_path / "requests" / f"end_rank_{others[2]}.json").exists() == here


def parts(**changes: Any) -> Any:
    """What a rank had in a world that is no more, after step 4."""
    state = SimpleNamespace(step=4, scalars=lambda link: {"order_sha256": link})
    return SimpleNamespace(
        **{
            "members": (0, 1), "state": state, "order": SharedOrder("", *([None] * 3)), "copies": None, "scores": {},
            "scored_step": None, "saved_step": 4, "owes_checkpoint": False,
            "saver": SimpleNamespace(is_settled=True, abandon=lambda grace_s: None), **changes,
        }
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, 2])
def test_checkpoints_of_two_worlds_have_folders_of_their_own_until_they_are_whole(size: int) -> None:
    """What rank 0 of the world before still writes, or removes since a part has not come, is not this world's."""
    run: Any = SimpleNamespace(attempt="before", world=SimpleNamespace(size=size))
    assert survive._scalars(run, parts())["attempt"] != "before"
