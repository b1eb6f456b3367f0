"""Fault injection in a rank: each fault occurs at its place, once, and with the documented effect."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness import LIMIT_S, Harness, all_gone, run_to_end, tree, wait_until
from torch import nn

from frog.core.config.fault_kinds import FULL_DEVICE, KINDS
from frog.core.config.faults import Fault, dump_faults, marks_folder
from frog.core.errors import CheckpointError, UsageError
from frog.core.runs import EventWriter
from frog.core.runs.event_schema import ErrorEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.observer import OBSERVERS, named_observers, observing, operation
from frog.measure.chaos import chaos_rank as rank
from frog.measure.chaos import collective_kills
from frog.measure.chaos.chaos_rank import Injector, _resized
from frog.measure.chaos.collective_kills import CollectiveKills
from frog.measure.chaos.sandbox import faults_env
from frog.train.comm.axis import NOTHING, Axis, Pending, Silent
from frog.train.comm.collectives.connection import Connection
from frog.train.comm.collectives.cost import Costs
from frog.train.comm.collectives.frames import HEADER_BYTES, FrameCodec
from frog.train.comm.collectives.group import Group
from frog.train.comm.collectives.messages import Messages
from frog.train.comm.collectives.rendezvous import Peer


def injector(folder: Path, *faults: Fault, **parts: Any) -> Injector:
    """Return an injector for rank 0, with only the parts of a run that a fault needs."""
    run = SimpleNamespace(
        identity=0, world=SimpleNamespace(rank=0), attempt="a1", folder=RunFolder(folder / "run"),
        config=SimpleNamespace(train=SimpleNamespace(timeout_s=5)),
    )  # fmt: skip
    found = Injector(faults, folder / "met")
    found.run_built(run, SimpleNamespace(**parts))  # type: ignore[arg-type]
    return found


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "met").iterdir())


def test_rank_without_faults_has_no_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FROG_OBSERVER", raising=False)
    assert named_observers() == []
    assert OBSERVERS == []


def test_rank_has_only_its_own_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(dump_faults([Fault("raise", 1, 2, "reduce"), Fault("raise", 0, 3, "reduce")]))
    for name, value in faults_env(path).items():
        monkeypatch.setenv(name, value)
    (found,) = named_observers()
    found.run_built(SimpleNamespace(identity=0), None)
    events = EventWriter(tmp_path / "events.jsonl")
    with observing(found):
        events.step = 2
        with events.span("reduce"):
            pass
        events.step = 3
        with pytest.raises(RuntimeError), events.span("reduce"):
            pytest.fail("the phase's work was begun")
    events.close()
    assert [mark.name for mark in marks_folder(path).iterdir()] == ["1.0"]
    assert OBSERVERS == []


def test_fault_occurs_only_at_its_place_and_once(tmp_path: Path) -> None:
    fault = Fault("raise", 0, 2, "forward", micro=1)
    met = injector(tmp_path, fault)
    for step, phase, micro in ((1, "forward", 1), (2, "backward", 1), (2, "forward", 0), (3, "forward", 1)):
        met.phase_begins(step, phase, micro)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        met.phase_begins(2, "forward", 1)
    injector(tmp_path, fault).phase_begins(2, "forward", 1)  # after a restart
    assert marks(tmp_path) == ["0.0"]


def test_fault_with_times_two_occurs_twice(tmp_path: Path) -> None:
    fault = Fault("raise", 0, 2, "reduce", times=2)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            injector(tmp_path, fault).phase_begins(2, "reduce", 0)
    injector(tmp_path, fault).phase_begins(2, "reduce", 0)


def test_midway_kills_the_rank_after_n_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(collective_kills.os, "kill", lambda pid, number: killed.append(number))
    fault = Fault("midway", 0, 2, "reduce", signs=3)
    met = injector(tmp_path, fault)
    met.phase_begins(2, "reduce", 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        met.message_leaves(server, [b"x"])
    met.message_arrives()
    met.counter_rises(0, 6)
    assert not killed
    for _ in range(3):
        met.counter_rises(1, 7)
    assert killed == [signal.SIGKILL]
    assert (tmp_path / "met" / "0.0").read_text() == "between two collectives, before it published REDUCED 7"
    again = injector(tmp_path, fault)  # after a restart
    again.phase_begins(2, "reduce", 0)
    for _ in range(9):
        again.counter_rises(1, 7)
    assert killed == [signal.SIGKILL]


@pytest.mark.parametrize("sent", [0, 1, 31, 10**6])
def test_midway_sends_n_bytes_of_a_message_before_the_kill(
    sent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(pid: int, number: int) -> None:
        group.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(collective_kills.os, "kill", kill)
    group, theirs = group_of_two()
    fault = Fault("midway", 0, 2, "reduce", signs=0, sent_bytes=sent)
    met = injector(tmp_path, fault)
    met.phase_begins(2, "reduce", 0)
    with observing(met), pytest.raises(KeyboardInterrupt):
        group.broadcast(np.ones(1000), 0)
    whole = 8000 + HEADER_BYTES
    assert len(b"".join(iter(lambda: theirs.recv(1 << 16), b""))) == min(sent, whole)
    words = f"in broadcast, with {min(sent, whole)} of {whole} bytes of a message sent"
    assert (tmp_path / "met" / "0.0").read_text() == words
    theirs.close()


def group_of_two() -> tuple[Group, socket.socket]:
    """Return a group of two ranks, seen from rank 0, and the socket of rank 1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    connection = Connection(ours, 1, FrameCodec(b"key", False), FrameCodec(b"key", False))
    peers = [Peer(rank, "", 0, "") for rank in range(2)]
    return Group(0, peers, {1: connection}, Messages({}, 1), 1, Costs(), memory=False), theirs


@pytest.mark.parametrize(
    ("operations", "place"),
    [
        ([], "between two collectives"),
        (["all_reduce", "all_reduce"], "in all_reduce"),
        (["barrier", "all_reduce"], "in barrier"),
        (["all_gather", "barrier", "all_reduce"], "in the barrier after all_gather"),
        (["agreement"], "in the agreement after no collective"),
        (["broadcast", "agreement", "entry"], "in the agreement after broadcast"),
        (["entry"], "while joining"),
    ],
)
def test_midway_mark_contains_the_place_of_the_kill(
    operations: list[str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations of other threads, and finished operations, do not count."""
    monkeypatch.setattr(collective_kills.os, "kill", lambda pid, number: None)
    places: list[str] = []
    met = CollectiveKills()
    met.kill_after(0, lambda where: places.append(where) is None)
    with observing(met), contextlib.ExitStack() as stack:
        for name in ("reduce", "agreement"):
            with operation(name):
                pass
        other = threading.Thread(target=operation("scatter").__enter__)
        other.start()
        other.join()
        for name in operations:
            stack.enter_context(operation(name))
        met.message_arrives()
    assert places == [f"{place}, before it received"]


def test_straggler_stays_slow_in_its_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(rank.time, "sleep", slept.append)
    met = injector(tmp_path, Fault("slow", 0, 2, "data", seconds=0.25))
    counts = []
    for step in (1, 2, 3):
        for phase in ("data", "forward"):
            met.phase_begins(step, phase, 0)  # type: ignore[arg-type]
            counts.append(len(slept))
    assert counts == [0, 0, 1, 1, 2, 2]
    assert set(slept) == {0.25}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((7,), (3,)), ((1,), (2,)), ((8, 2), (4, 1)), ((2, 8), (1, 4)), ((12, 12), (6, 6)), ((4, 1), (8, 2))],
)
def test_tensors_of_another_size_stay_consistent(sizes: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """An all-gather's whole stays a multiple of its part, an all-to-all's slices stay even: torch must accept them."""
    changed = _resized([torch.ones(size) for size in sizes], num_ranks=4 if len(set(sizes)) > 1 else 2)
    assert tuple(tensor.numel() for tensor in changed) == expected


@pytest.mark.parametrize("kind", ["shape", "missing"])
def test_collective_fault_affects_only_its_phase(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It affects no earlier or later phase, no axis of one rank, and not the second collective of the phase."""
    begun: list[int] = []

    def start(axis: Axis, op: str, payload_bytes: int, *begins: Any) -> Pending:
        begun.append(payload_bytes)
        return NOTHING

    monkeypatch.setattr(Axis, "_start", start)
    met = injector(tmp_path, Fault(kind, 0, 2, "reduce"))
    pair = Axis("dp", [0, 1], 0, torch.device("cpu"), None, [Silent()])
    with observing(met):
        for step, phase in ((1, "reduce"), (2, "backward"), (2, "reduce"), (2, "zero"), (3, "reduce")):
            met.phase_begins(step, phase, 0)  # type: ignore[arg-type]
            pair.alone().all_reduce(torch.ones(3))
            pair.all_reduce(torch.ones(10))
            pair.all_reduce(torch.ones(10))
    assert [size for size in begun if size != 12] == [40] * 4 + {"shape": [20], "missing": []}[kind] + [40] * 5
    assert marks(tmp_path) == ["0.0"]


@pytest.mark.parametrize("kind", ["shape", "missing"])
@pytest.mark.parametrize(
    "begin",
    [
        lambda pair: pair.start_send(torch.ones(10), 1),
        lambda pair: pair.start_receive(torch.ones(10), 1),
        lambda pair: pair.start_shift([torch.ones(10)], [torch.ones(10)]),
    ],
    ids=["send", "receive", "shift"],
)
def test_collective_fault_also_alters_messages(
    kind: str, begin: Callable[[Axis], Pending], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipeline the message follows the phase: the fault waits for it until the next phase begins."""
    begun: list[int] = []
    monkeypatch.setattr(
        "frog.train.comm.axis.Pending", lambda axis, op, size, start, peer=None: begun.append(size) or NOTHING
    )
    met = injector(tmp_path, Fault(kind, 0, 2, "forward"))
    pair = Axis("pp", [0, 1], 0, torch.device("cpu"), None, [Silent()])
    with observing(met):
        for step, phase in ((1, "forward"), (2, "data"), (2, "forward"), (2, "backward")):
            met.phase_begins(step, phase, 0)  # type: ignore[arg-type]
            begin(pair)
    assert begun == {"shape": [40, 40, 20, 40], "missing": [40, 40, 40]}[kind]
    assert marks(tmp_path) == ["0.0"]


def test_collective_fault_does_not_occur_in_a_phase_without_collectives(tmp_path: Path) -> None:
    met = injector(tmp_path, Fault("missing", 0, 2, "forward"))
    met.phase_begins(2, "forward", 0)
    met.phase_begins(2, "backward", 0)
    args = (torch.ones(4),)
    assert met.collective_begins("all_reduce", 2, args) is args
    assert marks(tmp_path) == []


def test_nan_fault_changes_the_gradient_in_backward(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    met = injector(tmp_path, Fault("nan", 0, 2, "backward"), model=model)
    for step in (1, 2, 3):
        model.zero_grad()
        met.phase_begins(step, "backward", 0)
        model(torch.ones(1, 3)).sum().backward()
        assert model.weight.grad is not None
        assert int(model.weight.grad.isnan().sum()) == (step == 2)
    assert model.bias.grad is not None
    assert not model.bias.grad.isnan().any()


def test_nan_fault_changes_the_last_gradient_that_has_elements_before_its_reduction(tmp_path: Path) -> None:
    shards = [SimpleNamespace(tensor=torch.ones(2, size)) for size in (3, 2, 0)]
    met = injector(tmp_path, Fault("nan", 0, 2, "reduce"), gradient_shards=lambda: shards)
    for step in (1, 2, 3):
        met.phase_begins(step, "reduce", 0)
        spoiled = [shard.tensor.isnan().nonzero().tolist() for shard in shards]
        assert spoiled == [[], [[0, 0]] if step > 1 else [], []]


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        ("node", "node3", {"act": "kill_node", "node": 3}),
        ("node", "pond", {"act": "kill_node", "node": 1}),  # not a simulated node: its number in the world
        ("cut", "node12", {"act": "cut", "node": 12}),
    ],
)
def test_launcher_is_asked_for_what_a_rank_cannot_do(
    kind: str, name: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requests").mkdir()
    path = tmp_path / "requests" / f"{fields['act']}_0_{os.getpid()}.json"
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        assert json.loads(path.read_text()) == {**fields, "pid": None}
        if len(waited) == 3:
            path.with_suffix(".done").touch()

    monkeypatch.setattr(rank, "launch_dir", lambda: tmp_path)
    monkeypatch.setattr(rank, "host_name", lambda: name)
    monkeypatch.setattr(rank.time, "sleep", sleep)
    met = injector(tmp_path, Fault(kind, 0, 2, "reduce"))
    met._run.world.env = SimpleNamespace(node_rank=1)  # type: ignore[misc]
    met.phase_begins(2, "reduce", 0)
    assert waited == [0.005] * 3


@pytest.mark.parametrize(
    ("has_launcher", "said"),
    [
        (False, "no launcher that could kill a node"),
        (True, "the launcher did not answer the request to kill_node within 60 s"),
    ],
)
def test_missing_or_silent_launcher_is_an_error(
    has_launcher: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requests").mkdir()
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 20.0

    monkeypatch.setattr(rank, "launch_dir", lambda: tmp_path if has_launcher else None)
    monkeypatch.setattr(rank, "host_name", lambda: "node0")
    monkeypatch.setattr(rank, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    met = injector(tmp_path, Fault("node", 0, 2, "reduce"))
    with pytest.raises(UsageError) as caught:
        met.phase_begins(2, "reduce", 0)
    assert caught.value.what == said
    assert now == (1080.0 if has_launcher else 1000.0)


@pytest.mark.parametrize(
    ("after_s", "for_s", "requests"),
    [
        (0.0, None, [("cut", None)]),
        (0.0, 2.5, [("cut", None), ("heal", 2.5)]),
        (1.5, None, [("cut", 1.5)]),
        (1.5, 2.5, [("cut", 1.5), ("heal", 4.0)]),
    ],
)
def test_network_is_cut_after_and_for_the_seconds_of_the_fault(
    after_s: float,
    for_s: float | None,
    requests: list[tuple[str, float | None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, float | None]] = []
    monkeypatch.setattr(Injector, "_request", lambda self, act, number: asked.append((act, None)))
    monkeypatch.setattr(Injector, "_request_later", lambda self, seconds, act, number: asked.append((act, seconds)))
    injector(tmp_path, Fault("cut", 0, 2, "reduce", after_s=after_s, for_s=for_s)).phase_begins(2, "reduce", 0)
    assert asked == requests


@pytest.mark.parametrize(
    ("args", "changed"),
    [
        ((torch.arange(8.0),), [4]),
        ((torch.arange(8.0), torch.arange(2.0), "sum"), [4, 1, "sum"]),
        (([torch.arange(6.0)], [torch.arange(1.0)], 3), [[3], [2], 3]),
    ],
)
def test_tensors_of_a_collective_are_cut_and_other_arguments_are_kept(
    args: tuple[Any, ...], changed: list[Any]
) -> None:
    def sizes(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return arg.numel()
        return [x.numel() for x in arg] if isinstance(arg, list) else arg

    assert [sizes(arg) for arg in rank._mismatched(args, 2)] == changed


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="this system has no device that is always full")
def test_disk_fault_raises_the_systems_own_error(tmp_path: Path) -> None:
    met = injector(tmp_path, Fault("disk", 0, 2, "checkpoint"))
    met.phase_begins(2, "checkpoint", 0)
    part = tmp_path / "run" / "checkpoints" / ".step_00000002.a1" / "rank_0.safetensors"
    with open(part, "wb", buffering=0) as file, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.write(b"weights")


def test_port_fault_closes_connections_at_both_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        theirs, _ = server.accept()
        injector(tmp_path, Fault("port", 0, 2, "reduce")).phase_begins(2, "reduce", 0)
        with theirs:
            theirs.settimeout(LIMIT_S)
            assert theirs.recv(1) == b""
        with pytest.raises(OSError, match=r"Broken pipe|Errno 32"):
            mine.send(b"x")
        again = socket.create_connection(server.getsockname(), timeout=LIMIT_S)  # listening sockets stay open
        again.close()


def test_every_kind_has_an_action() -> None:
    """Kinds that a collective or a checkpoint triggers are armed for it."""
    assert rank._ACTS.keys() == KINDS.keys()
    armed = {name for name, act in rank._ACTS.items() if act in (Injector._arm, Injector._await_checkpoint)}
    assert armed == {name for name, kind in KINDS.items() if kind.alters_collective or kind.damages_checkpoint}


def test_armed_collective_fault_does_not_affect_the_checkpoint(tmp_path: Path) -> None:
    met = injector(tmp_path, Fault("missing", 0, 2, "checkpoint"))
    met.phase_begins(2, "checkpoint", 0)
    met.phase_ends(2, "checkpoint", 0)
    assert marks(tmp_path) == []


def damaging(folder: Path, kind: str, save: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Save step 2 on rank 0 with the fault; return the signals that the rank sent to itself."""
    sent: list[int] = []
    monkeypatch.setattr(rank.os, "kill", lambda pid, number: sent.append(number))
    met = injector(folder, Fault(kind, 0, 2, "checkpoint"))
    met.phase_begins(2, "checkpoint", 0)
    save(2)
    met.phase_ends(2, "checkpoint", 0)
    return sent


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.damages_checkpoint])
def test_damage_affects_only_the_new_checkpoint(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of that step from an earlier attempt stays unchanged until the new one replaces it."""
    target = RunFolder(tmp_path / "run").checkpoint(2)
    part = target / "rank_0.safetensors"
    target.mkdir(parents=True)
    part.write_bytes(b"old, and damaged")
    swaps: list[threading.Timer] = []

    def swap() -> None:
        staging = target.with_name(".step_2.new")
        staging.mkdir()
        (staging / part.name).write_bytes(b"new, and whole")
        assert part.read_bytes() == b"old, and damaged"
        shutil.rmtree(target)
        staging.rename(target)

    def save(step: int) -> int:
        swaps.append(threading.Timer(0.1, swap))
        swaps[0].start()
        return 7

    sent = damaging(tmp_path, kind, save, monkeypatch)
    swaps[0].join()
    assert sent == [signal.SIGKILL]
    left = part.read_bytes() if part.exists() else None
    assert left == {"corrupt": b"new, and whold", "torn": b"new, an", "absent": None}[kind]


def test_healing_cut_makes_two_distinct_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher identifies a request by its file name, so the two must differ."""
    (tmp_path / "requests").mkdir()
    monkeypatch.setattr(rank, "launch_dir", lambda: tmp_path)
    met = injector(tmp_path, Fault("cut", 0, 2, "reduce", for_s=2))
    met._run.world.env = SimpleNamespace(node_rank=1)  # type: ignore[misc]
    granted: list[str] = []

    def have_been_granted() -> bool:
        for path in (tmp_path / "requests").glob("*.json"):
            if not path.with_suffix(".done").exists():
                granted.append(json.loads(path.read_text())["act"])
                path.with_suffix(".done").touch()
        return len(granted) >= 2

    launcher = threading.Thread(target=wait_until, args=(have_been_granted, "two requests"), daemon=True)
    launcher.start()
    met.phase_begins(2, "reduce", 0)
    assert granted == ["cut"]
    launcher.join(timeout=LIMIT_S)
    assert granted == ["cut", "heal"]


@pytest.mark.parametrize(("kind", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_process_is_killed_or_stopped_by_its_own_signal(
    kind: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int, list[str]]] = []
    monkeypatch.setattr(rank.os, "kill", lambda pid, number: sent.append((pid, number, marks(tmp_path))))
    met = injector(tmp_path, Fault(kind, 0, 2, "reduce"))
    for _ in range(2):
        met.phase_begins(2, "reduce", 0)
    assert sent == [(os.getpid(), number, ["0.0"])]  # the mark is written first


def test_extra_collective_has_one_element(tmp_path: Path) -> None:
    reduced: list[torch.Tensor] = []
    met = injector(tmp_path, Fault("extra", 0, 2, "reduce"))
    met._run.world.axis = SimpleNamespace(all_reduce=reduced.append)  # type: ignore[misc]
    met._run.world.device = torch.device("cpu")  # type: ignore[misc]
    met.phase_begins(2, "reduce", 0)
    assert [tensor.tolist() for tensor in reduced] == [[0.0]]


def test_faults_of_an_earlier_world_do_not_continue_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that others have lost gets another number, and its faults with it."""
    slept: list[float] = []
    monkeypatch.setattr(rank.time, "sleep", slept.append)
    met = injector(tmp_path, Fault("slow", 0, 2, "data"), Fault("missing", 0, 2, "data"))
    met.phase_begins(2, "data", 0)
    met.run_built(met._run, met._strategy)
    args = (torch.ones(4),)
    assert met.collective_begins("all_reduce", 2, args) is args
    met.phase_begins(3, "data", 0)
    assert slept == [0.5]


def test_checkpoint_that_never_appears_cannot_be_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 2.0

    monkeypatch.setattr(rank, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    met = injector(tmp_path, Fault("torn", 0, 2, "checkpoint"))
    met.phase_begins(2, "checkpoint", 0)
    with pytest.raises(CheckpointError, match="step_00000002: does not exist, so it cannot be damaged"):
        met.phase_ends(2, "checkpoint", 0)
    assert now == 1006.0  # after train.timeout_s


def test_disk_fault_leaves_what_other_ranks_wrote_and_removes_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(rank.atexit, "register", lambda act, **options: at_exit.append(lambda: act(**options)))
    staging = tmp_path / "run" / "checkpoints" / ".step_00000002.a1"
    staging.mkdir(parents=True)
    (staging / "rank_1.safetensors").touch()
    injector(tmp_path, Fault("disk", 0, 2, "checkpoint")).phase_begins(2, "checkpoint", 0)
    assert {path.name: path.is_symlink() for path in staging.iterdir()} == {
        "rank_0.safetensors": True, "rank_1.safetensors": False,
    }  # fmt: skip
    for _ in range(2):  # the checkpoint may have removed it
        at_exit[0]()
    assert [path.name for path in staging.iterdir()] == ["rank_1.safetensors"]


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_port_fault_closes_only_connections_of_the_network(family: int, host: str, tmp_path: Path) -> None:
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    one, other = socket.socketpair()
    with server, socket.create_connection(server.getsockname()[:2]) as mine, one, other:
        injector(tmp_path, Fault("port", 0, 2, "reduce")).phase_begins(2, "reduce", 0)
        with pytest.raises(OSError, match=r"Broken pipe|Errno 32"):
            mine.send(b"x")
        one.send(b"still open")
        assert other.recv(20) == b"still open"


def test_later_request_is_made_by_a_timer_that_does_not_keep_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Any] = []

    def timer(seconds: float, act: Callable[..., None], args: tuple[Any, ...]) -> Any:
        timers.append(SimpleNamespace(told=(seconds, act, args), daemon=False, starts=0))
        timers[-1].start = lambda: setattr(timers[-1], "starts", 1)
        return timers[-1]

    monkeypatch.setattr(rank.threading, "Timer", timer)
    met = injector(tmp_path, Fault("cut", 0, 2, "reduce", after_s=1.5))
    met.phase_begins(2, "reduce", 0)
    assert [(each.told, each.daemon, each.starts) for each in timers] == [((1.5, met._request, ("cut", 0)), True, 1)]


def test_kill_within_a_message_waits_for_one_and_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(collective_kills.os, "kill", lambda pid, number: killed.append(number))
    sent: list[bytes] = []
    sock: Any = SimpleNamespace(send=sent.append)
    places: list[str] = []
    met = CollectiveKills()
    met.kill_after(1, lambda where: places.append(where) is None, sent_bytes=3)
    met.message_leaves(sock, [b"first"])  # a sign of life, too early
    met.counter_rises(0, 1)
    met.message_arrives()
    assert killed == []
    met.message_leaves(sock, [b"ab", memoryview(b"cdef")])
    met.message_leaves(sock, [b"more"])
    assert (killed, sent) == ([signal.SIGKILL], [b"abc"])
    assert places == ["between two collectives, with 3 of 6 bytes of a message sent"]


def test_unwanted_kill_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_kills.os, "kill", lambda pid, number: pytest.fail("it was killed"))
    met = CollectiveKills()
    for sent_bytes in (None, 3):
        met.kill_after(0, lambda where: False, sent_bytes)
    met.message_leaves(SimpleNamespace(send=lambda data: pytest.fail("it was sent")), [b"abcdef"])  # type: ignore[arg-type]
    met.message_arrives()


# ---- real worlds -----------------------------------------------------------------------------------------------------

ENDS = [
    ("raise rank=1 step=0 phase=evaluate", 1, ("RuntimeError: the program did not expect", 'File "')),
    ("stop rank=1 step=2 phase=forward", 137, ("was killed by SIGKILL",)),
    ("missing rank=1 step=2 phase=reduce", None, ("rank ",)),
    ("node rank=1 step=3 phase=zero", None, ()),
    ("disk rank=1 step=4 phase=checkpoint", 1, ("checkpoint of step 4 could not be written", "No space left")),
]


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: the test names Linux signals")
@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        pytest.param(*end, id=end[0].split()[0], marks=[pytest.mark.slow] if number else [])
        for number, end in enumerate(ENDS)
    ],
)
def test_world_ends_and_names_the_failed_rank_first(
    harness: Harness, fault: str, code: int | None, words: tuple[str, ...]
) -> None:
    kind = fault.split()[0]
    stops = kind == "stop"  # the launcher detects that before the other rank gives up
    settings = (f"name=end-{kind}", "train.steps=4", f"train.timeout_s={60 if stops else 8}")
    program = ["train", "run.toml", *(word for setting in settings for word in ("--set", setting))]
    world = ["--nproc", "2", "--threads", "1", "--deadline", "5" if stops else "60"]
    process = harness.start("frog", "chaos", "--fault", fault, *world, "--", *program)
    wait_until(lambda: harness.folder(f"end-{kind}").heartbeat(1).exists(), "rank 1 to start", process)
    family = tree(process)
    _, told = run_to_end(process)
    assert process.returncode == code or (code is None and process.returncode not in (0, 2)), told
    wait_until(lambda: all_gone(family), "the world to end")
    last = told[told.rindex("error:") :]
    assert kind == "node" or last.startswith("error: rank ")
    assert all(word in last for word in words), told
    assert "never occurred" not in told
    assert "frog diagnose latest" in last
    assert (
        not any(
            kind in path.name or any(word in path.read_bytes() for word in (b"inject", b"chaos"))
            for path in harness.folder(f"end-{kind}").events.iterdir()
        )
        or kind == "raise"
    )
    if kind == "disk":  # rank 0 notices the loss of its peer, and does not wait for its part of the checkpoint
        types = [told.of(ErrorEvent)[-1].type for _, told in sorted(harness.events("end-disk").ranks.items())]
        assert types == ["CommError", "CheckpointError"]
