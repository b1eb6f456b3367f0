"""The message or collective for which a rank waits, from the variables of torch's functions."""

from __future__ import annotations

import inspect
import sys
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from torch.distributed import distributed_c10d

from frog.observe.hook.frog_observer.unrecorded_calls import _PEERS, _ROOTS, root_of, transfer_of

TORCH = """
def send(tensor, dst=None, group=None, tag=0, group_dst=None):
    return sys._getframe()
def recv(tensor, src=None, group=None, tag=0, group_src=None):
    return sys._getframe()
def barrier(group=None):
    return sys._getframe()
def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    return sys._getframe()
def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    return sys._getframe()
"""
TENSOR = SimpleNamespace(shape=(3, 2), dtype="torch.float32")


def frame_of(name: str, file: str = "/x/torch/distributed/distributed_c10d.py", *args: Any, **kwargs: Any) -> FrameType:
    functions: dict[str, Any] = {"sys": sys}
    exec(compile(TORCH, file, "exec"), functions)
    frame: FrameType = functions[name](*args, **kwargs)
    return frame


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks are one group, ranks 4 and 6 another."""
    world = SimpleNamespace(default_pg="all", pg_group_ranks={"all": {0: 0, 1: 1}, "some": {4: 0, 6: 1}})
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))


@pytest.mark.parametrize(
    ("name", "given", "peer"),
    [
        ("send", {"dst": 1}, 1),
        ("recv", {"src": 0}, 0),
        ("send", {"group_dst": 1}, 1),
        ("recv", {"group": "some", "group_src": 1}, 6),
        ("recv", {}, None),
    ],
)
def test_message_has_its_peer_in_the_world(name: str, given: dict[str, Any], peer: int | None) -> None:
    inner = sys._getframe()
    found = transfer_of([inner, frame_of(name, tensor=TENSOR, tag=3, **given), inner])
    assert found == {"op": name, "peer": peer, "tag": 3, "size": [3, 2], "dtype": "float32"}


def test_other_functions_wait_for_no_message() -> None:
    assert transfer_of([sys._getframe(), frame_of("barrier"), frame_of("send", "/home/me/mail.py", TENSOR, 1)]) is None


def test_another_version_of_torch_is_no_error() -> None:
    assert transfer_of([frame_of("send", tensor=None)]) is None
    assert transfer_of([frame_of("recv", tensor=TENSOR, group="unknown", group_src=0)]) is None
    assert root_of([frame_of("broadcast", tensor=TENSOR, group="unknown", group_src=0)]) is None


@pytest.mark.parametrize(
    ("name", "given", "root"),
    [
        ("broadcast", {"src": 1}, 1),
        ("broadcast", {"group": "some", "group_src": 1}, 6),
        ("gather", {"dst": 0}, 0),
        ("barrier", {}, None),
        ("send", {"tensor": TENSOR, "dst": 1}, None),
    ],
)
def test_collective_has_its_root_in_the_world(name: str, given: dict[str, Any], root: int | None) -> None:
    given = {"tensor": TENSOR, **given} if name in ("broadcast", "gather") else given
    assert root_of([sys._getframe(), frame_of(name, **given), sys._getframe()]) == root


@pytest.mark.parametrize(("name", "side"), [*_PEERS.items(), *_ROOTS.items()])
def test_functions_of_torch_have_the_variables_that_are_read(name: str, side: str) -> None:
    variables = inspect.signature(getattr(distributed_c10d, name)).parameters
    assert {"tensor", "group", side, f"group_{side}"} <= set(variables)
