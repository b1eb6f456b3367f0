"""What a run's door.json says: it is held against a schema before anything is connected to, and whose it is counts."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frog.comm.collectives.errors import CollectiveError
from frog.comm.collectives.rendezvous import Peer
from frog.comm.elastic import membership
from frog.comm.elastic.membership import Membership, join_membership
from frog.core.env import world_env
from frog.core.errors import RunError
from frog.runs.folder import RunFolder
from frog.train.start import admit_others

GOOD = {"format": 1, "identity": 0, "host": "127.0.0.1", "port": 9, "secret": "ab"}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("port", 70000, r"\$\.port: found 70000, expected int <= 65535"),
        ("host", "a\0b", r'\$\.host: found the text "a\\u0000b", expected the name or address of a host'),
        ("host", "x" * 300, "…, expected the name or address of a host"),
        ("host", "x" * 64, "expected the name or address of a host"),
        ("host", "node..pond", r'found the text "node\.\.pond", expected the name or address of a host'),
    ],
)
def test_a_door_that_leads_nowhere_is_refused(field: str, value: Any, said: str, tmp_path: Path) -> None:
    door = tmp_path / "door.json"
    door.write_text(json.dumps({**GOOD, field: value}))
    with pytest.raises(RunError, match=said):
        join_membership(world_env(), torch.device("cpu"), 1.0, door)


def test_who_joins_is_called_where_the_way_to_the_door_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door, seen = tmp_path / "door.json", list[Any]()
    door.write_text(json.dumps({**GOOD, "host": "192.0.2.1"}))
    monkeypatch.setattr(membership, "own_host", {"192.0.2.1": "192.0.2.7"}.__getitem__)
    monkeypatch.setattr(membership, "join_survivors", lambda *told, **options: seen.append(told))
    join_membership(world_env(), torch.device("cpu"), 1.0, door)
    ((peer, _, host, _),) = seen
    assert (peer.host, host) == ("192.0.2.1", "192.0.2.7")


def test_a_door_on_a_machine_that_nobody_knows_is_one_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_host(towards: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    door = tmp_path / "door.json"
    door.write_text(json.dumps({**GOOD, "host": "elsewhere"}))
    monkeypatch.setattr(membership, "own_host", own_host)
    with pytest.raises(CollectiveError, match="no way leads to elsewhere"):
        join_membership(world_env(), torch.device("cpu"), 1.0, door)


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Membership]:
    """The first member of a world, with an open door."""
    monkeypatch.setattr(membership, "start_on", lambda *_: None)
    monkeypatch.setattr(membership, "World", lambda *_, **__: None)
    survivors: Any = SimpleNamespace(
        identity=0, rank=0, size=1, members=(0,), is_full=False, close=lambda: None,
        address=Peer(0, "127.0.0.1", 9, ""),
    )  # fmt: skip
    member = Membership(survivors, world_env(), torch.device("cpu"), 1.0, "secret", tmp_path / "door.json")
    member.open_door()
    yield member
    member.leave()


def test_who_leaves_takes_its_door_away_and_no_other(first: Membership, tmp_path: Path) -> None:
    door = tmp_path / "door.json"
    first.leave()
    assert not door.exists()
    first.open_door()
    others = json.dumps({**GOOD, "identity": 1})
    door.write_text(others)
    first.leave()
    assert door.read_text() == others


def test_a_world_without_a_number_left_says_so(first: Membership, tmp_path: Path) -> None:
    door = tmp_path / "door.json"
    first.renew()
    assert first._door is not None
    vars(first.survivors)["is_full"] = True
    first.renew()
    assert not door.exists()
    first.open_door()
    assert first._door is None, "somebody listens"
    with pytest.raises(RunError, match="64 ranks have been in it, and no more can come"):
        join_membership(world_env(), torch.device("cpu"), 1.0, door)
    first.leave()
    assert not door.exists()


def test_then_the_door_of_somebody_who_was_lost_does_not_stay(first: Membership, tmp_path: Path) -> None:
    door = tmp_path / "door.json"
    first.leave()
    door.write_text(json.dumps({**GOOD, "identity": 1}))
    vars(first.survivors)["is_full"] = True
    first.open_door()
    assert json.loads(door.read_text())["full"] == "numbers"


def test_nobody_comes_in_for_whom_a_step_has_no_sequence(first: Membership, tmp_path: Path) -> None:
    """The others would fail with it: each rank takes one in every micro-batch."""
    door = tmp_path / "door.json"
    first.most_ranks = 1
    for _ in range(2):
        first.renew()
        first.open_door()
        assert first._door is None, "somebody listens"
        with pytest.raises(CollectiveError, match="none is left for another"):
            join_membership(world_env(), torch.device("cpu"), 1.0, door)
    first.most_ranks = 2
    first.renew()
    first.open_door()
    assert first._door is not None
    assert json.loads(door.read_text())["full"] is None


def test_a_run_knows_to_how_many_a_step_can_be_dealt(first: Membership, tmp_path: Path) -> None:
    train = SimpleNamespace(global_batch_size=14, grad_accum=4)
    run: Any = SimpleNamespace(
        config=SimpleNamespace(train=train), folder=RunFolder(tmp_path), world=SimpleNamespace(is_main=False)
    )
    reporter: Any = None
    admit_others(run, first, reporter)
    assert first.most_ranks == 3
