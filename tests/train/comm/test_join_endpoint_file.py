"""A run's join_endpoint.json: its schema is checked before any connection, and each rank deletes only its own file."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frog.core.env import world_env
from frog.core.errors import RunError
from frog.core.runs.folder import RunFolder
from frog.train.comm.collectives.errors import CollectiveError
from frog.train.comm.collectives.rendezvous import Peer
from frog.train.comm.elastic import membership
from frog.train.comm.elastic.membership import Membership, join_membership
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
def test_endpoint_file_with_an_invalid_address_is_refused(field: str, value: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "join_endpoint.json"
    path.write_text(json.dumps({**GOOD, field: value}))
    with pytest.raises(RunError, match=said):
        join_membership(world_env(), torch.device("cpu"), 1.0, path)


def test_joining_rank_listens_on_the_route_to_the_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "join_endpoint.json", list[Any]()
    path.write_text(json.dumps({**GOOD, "host": "192.0.2.1"}))
    monkeypatch.setattr(membership, "own_host", {"192.0.2.1": "192.0.2.7"}.__getitem__)
    monkeypatch.setattr(membership, "join_survivors", lambda *args, **options: seen.append(args))
    join_membership(world_env(), torch.device("cpu"), 1.0, path)
    ((peer, _, host, _),) = seen
    assert (peer.host, host) == ("192.0.2.1", "192.0.2.7")


def test_unknown_endpoint_host_counts_as_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own_host(towards: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    path = tmp_path / "join_endpoint.json"
    path.write_text(json.dumps({**GOOD, "host": "elsewhere"}))
    monkeypatch.setattr(membership, "own_host", own_host)
    with pytest.raises(CollectiveError, match="no route to elsewhere"):
        join_membership(world_env(), torch.device("cpu"), 1.0, path)


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Membership]:
    """The first member of a world, with an open join endpoint."""
    monkeypatch.setattr(membership, "start_on", lambda *_: None)
    monkeypatch.setattr(membership, "World", lambda *_, **__: None)
    survivors: Any = SimpleNamespace(
        identity=0, rank=0, size=1, members=(0,), is_full=False, close=lambda: None,
        address=Peer(0, "127.0.0.1", 9, ""),
    )  # fmt: skip
    member = Membership(survivors, world_env(), torch.device("cpu"), 1.0, "secret", tmp_path / "join_endpoint.json")
    member.open_endpoint()
    yield member
    member.leave()


def test_leaving_rank_deletes_only_its_own_endpoint_file(first: Membership, tmp_path: Path) -> None:
    path = tmp_path / "join_endpoint.json"
    first.leave()
    assert not path.exists()
    first.open_endpoint()
    others = json.dumps({**GOOD, "identity": 1})
    path.write_text(others)
    first.leave()
    assert path.read_text() == others


def test_endpoint_file_can_also_be_read_by_its_old_name(first: Membership, tmp_path: Path) -> None:
    path, old = tmp_path / "join_endpoint.json", tmp_path / "door.json"
    assert old.read_text() == path.read_text()
    first.leave()
    assert not old.is_symlink()


def test_world_without_free_identities_rejects_joining_ranks(first: Membership, tmp_path: Path) -> None:
    path = tmp_path / "join_endpoint.json"
    first.renew()
    assert first._endpoint is not None
    vars(first.survivors)["is_full"] = True
    first.renew()
    assert not path.exists()
    first.open_endpoint()
    assert first._endpoint is None, "a member listens"
    with pytest.raises(RunError, match="all 64 identities are used; no more ranks can join"):
        join_membership(world_env(), torch.device("cpu"), 1.0, path)
    first.leave()
    assert not path.exists()


def test_full_world_replaces_the_endpoint_file_of_a_lost_rank(first: Membership, tmp_path: Path) -> None:
    path = tmp_path / "join_endpoint.json"
    first.leave()
    path.write_text(json.dumps({**GOOD, "identity": 1}))
    vars(first.survivors)["is_full"] = True
    first.open_endpoint()
    assert json.loads(path.read_text())["full"] == "numbers"


def test_rank_without_a_sequence_in_the_step_cannot_join(first: Membership, tmp_path: Path) -> None:
    """Each rank takes one sequence in every micro-batch, so the whole world would fail."""
    path = tmp_path / "join_endpoint.json"
    first.most_ranks = 1
    for _ in range(2):
        first.renew()
        first.open_endpoint()
        assert first._endpoint is None, "a member listens"
        with pytest.raises(CollectiveError, match="none is left for another rank"):
            join_membership(world_env(), torch.device("cpu"), 1.0, path)
    first.most_ranks = 2
    first.renew()
    first.open_endpoint()
    assert first._endpoint is not None
    assert json.loads(path.read_text())["full"] is None


def test_largest_world_has_one_rank_per_sequence_of_a_micro_batch(first: Membership, tmp_path: Path) -> None:
    train = SimpleNamespace(global_batch_size=14, grad_accum=4)
    run: Any = SimpleNamespace(
        config=SimpleNamespace(train=train), folder=RunFolder(tmp_path), world=SimpleNamespace(is_main=False)
    )
    reporter: Any = None
    admit_others(run, first, reporter)
    assert first.most_ranks == 3
