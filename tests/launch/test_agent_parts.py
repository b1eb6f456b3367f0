"""Parts of a node's agent, without ranks: when it forks them, and the store in which nodes find each other."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frog.core.errors import FrogError
from frog.launch.torchrun import agent, forkserver, store


@pytest.mark.parametrize(
    ("script", "method", "gpus", "changes", "forks"),
    [
        ("frog.train", None, None, {}, True),
        ("frog.train", "fork", None, {}, True),
        ("frog.train", "spawn", None, {}, False),
        ("frog.train", None, "cuda", {}, False),
        ("frog.train", None, "hip", {}, False),
        ("frog.train", "fork", "cuda", {}, True),
        ("other.train", None, None, {}, False),
        ("other.train", "fork", None, {}, True),
        ("frog.train", None, None, {"module": False}, False),
        ("frog.train", "fork", None, {"module": False}, True),
        ("frog.train", None, None, {"no_python": True}, False),
        ("frog.train", "fork", None, {"no_python": True}, False),
    ],
)
def test_ranks_are_forked_for_programs_of_frog_without_gpus_or_on_request(
    script: str,
    method: str | None,
    gpus: str | None,
    changes: dict[str, bool],
    forks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str | None] = []
    used: list[object] = []
    for name in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, name, "12" if name == gpus else None)
    monkeypatch.setattr(agent, "start_method", lambda: method)
    monkeypatch.setattr(agent, "missing_to_fork", lambda: None)
    monkeypatch.setattr(
        agent, "start_fork_server", lambda module: started.append(module) or SimpleNamespace(fork="a fork")
    )
    monkeypatch.setattr(agent, "fork_ranks_with", used.append)
    args: Any = SimpleNamespace(**{"module": True, "no_python": False, "training_script": script, **changes})
    agent._fork_ranks(args)
    assert started == ([script if args.module else None] if forks else [])
    assert used == (["a fork"] if forks else [])


def test_torch_without_what_forks_ranks_is_an_error_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    args: Any = SimpleNamespace(module=True, no_python=False, training_script="frog.train")
    for name in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, name, None)
    monkeypatch.setattr(agent, "missing_to_fork", lambda: "a name")
    monkeypatch.setattr(agent, "start_method", lambda: "fork")
    with pytest.raises(FrogError, match="FROG_START=fork"):
        agent._fork_ranks(args)
    monkeypatch.setattr(agent, "start_method", lambda: None)
    agent._fork_ranks(args)


@pytest.mark.parametrize(
    ("module", "loaded"),
    [("own_pages", "own_pages.main"), ("own_page", "own_page"), ("own_pages.main", "own_pages.main")],
)
def test_fork_server_loads_what_a_package_runs(
    module: str, loaded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_pages").mkdir()
    for name in ("own_pages/__init__.py", "own_pages/main.py", "own_page.py"):
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[str] = []
    monkeypatch.setattr(forkserver.importlib, "import_module", seen.append)
    forkserver._load(module)
    assert seen == [loaded]


class Ended(Exception):
    """The store's process is killed."""


@pytest.mark.parametrize("by_address", [True, False])
def test_store_serves_at_its_address_until_it_is_killed(by_address: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise Ended

    monkeypatch.setattr(store, "leave_with_parent", lambda: None)
    monkeypatch.setattr(store, "TCPStore", lambda *args, **settings: made.append((*args, settings)) or object())
    monkeypatch.setattr(store.time, "sleep", sleep)
    settings = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(Ended):
            store.main(f"127.0.0.1:{port}" if by_address else str(listening.fileno()))
        settings |= {} if by_address else {"master_listen_fd": listening.fileno()}
        assert made == [("127.0.0.1", port, settings)]
        assert listening.getsockname()[1] == port  # still open
