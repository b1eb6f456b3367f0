"""The switch and the launcher's side of a network, without namespaces: sockets and pipes stand for interfaces."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import wait_until

from frog.core.errors import LaunchError, UsageError
from frog.launch.network import Link, Network, namespaces, switch
from frog.launch.network import network as launchers
from frog.launch.network.namespaces import Namespaces, Shared, mac_of
from frog.launch.network.switch import Fabric, Switch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="networks of nodes exist only on Linux")

# ---- the switch's loop -----------------------------------------------------------------------------------------------


class Wired:
    """A switch in a thread. Its taps are sockets that keep frames apart; its input is a pipe."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_nodes: int = 2, mtu: int = 1500) -> None:
        self.pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(num_nodes)]
        for pair in self.pairs:
            for end in pair:
                end.setblocking(False)
        reading, self.requests = os.pipe()
        self.answers: list[dict[str, Any]] = []
        monkeypatch.setattr(switch, "_INPUT", reading)
        monkeypatch.setattr(switch, "_say", self.answers.append)
        nodes = [Namespaces(0, 0, ours.fileno()) for ours, _ in self.pairs]
        self.switch = Switch(nodes, Fabric(num_nodes, Link(1e9, delay_s=0.0)), mtu)
        self.thread = threading.Thread(target=self.switch.serve, daemon=True)
        self.thread.start()

    def send(self, source: int, target: int, data: bytes) -> None:
        self.pairs[source][1].send(mac_of(target) + mac_of(source) + data)

    def received(self, node: int) -> list[bytes]:
        found = []
        try:
            while True:
                found.append(self.pairs[node][1].recv(1 << 16)[12:])
        except BlockingIOError:
            return found

    def ask(self, text: str) -> None:
        before = len(self.answers)
        os.write(self.requests, text.encode())
        wait_until(lambda: len(self.answers) > before, "an answer")

    def close(self) -> None:
        os.close(self.requests)
        self.thread.join(20)
        assert not self.thread.is_alive()
        for end in (end for pair in self.pairs for end in pair):
            end.close()


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wired]:
    found = Wired(monkeypatch)
    yield found
    found.close()


def test_frames_pass_between_interfaces_and_are_counted(wired: Wired) -> None:
    for number in range(40):
        wired.send(0, 1, bytes([number]) * 50)
    got: list[bytes] = []
    wait_until(lambda: got.extend(wired.received(1)) or len(got) == 40, "the frames")
    assert got == [bytes([number]) * 50 for number in range(40)]
    wired.ask('{"act": "describe", "node_rank": null}\n')
    first, second = wired.answers[0]["nodes"]
    assert (first["sent_frames"], first["sent_bytes"], second["received_frames"]) == (40, 40 * 62, 40)


def test_frame_of_the_largest_packet_is_not_cut(wired: Wired) -> None:
    """1500 bytes, two addresses of 6, a type of 2 and a tag of 4."""
    wired.send(0, 1, b"x" * 1506)
    got: list[bytes] = []
    wait_until(lambda: got.extend(wired.received(1)) or got, "the frame")
    assert got == [b"x" * 1506]


def test_requests_cut_and_heal_a_node_and_may_come_in_pieces(wired: Wired) -> None:
    wired.ask('{"act": "cut", "node_rank": 0}\n{"act": "heal", "no')
    assert [node["is_cut"] for node in wired.answers[-1]["nodes"]] == [True, False]
    wired.send(0, 1, b"lost")
    wired.ask('de_rank": 0}\n')
    assert [node["is_cut"] for node in wired.answers[-1]["nodes"]] == [False, False]
    wired.send(0, 1, b"found")
    got: list[bytes] = []
    wait_until(lambda: got.extend(wired.received(1)) or got, "a frame")
    assert got == [b"found"]


def test_node_without_room_for_a_frame_loses_it(wired: Wired) -> None:
    wired.switch._taps[1] = os.open(os.devnull, os.O_RDONLY)  # it cannot be written
    wired.send(0, 1, b"lost")
    wired.send(1, 0, b"kept")
    got: list[bytes] = []
    wait_until(lambda: got.extend(wired.received(0)) or got, "the other frame")
    assert got == [b"kept"]
    os.close(wired.switch._taps[1])


def test_interface_has_its_turn_after_so_many_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, bytes]] = []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    fabric: Any = SimpleNamespace(take=lambda now_s, node, frame: taken.append((node, frame)))
    several = Switch([Namespaces(0, 0, -1), Namespaces(0, 0, ours.fileno())], fabric, 1500)
    for number in range(50):
        theirs.send(b"%d" % number)
    several._read_frames(ours.fileno())
    assert taken == [(1, b"%d" % number) for number in range(32)]
    several._read_frames(ours.fileno())
    assert len(taken) == 50
    ours.close()
    theirs.close()


SETTINGS = json.dumps({"num_nodes": 2, "link": {"rate_bits_per_s": 1e6}})


@pytest.mark.parametrize(
    ("user", "mtu", "expected"),
    [(None, 1500, [[5, 10, 11], [5, 20, 21]]), (4, 1500, [[4, 5, 10, 11], [4, 5, 20, 21]])],
)
def test_switch_says_how_to_enter_its_nodes_before_it_serves(
    user: int | None, mtu: int, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    served: list[int] = []
    made: list[tuple[int, int, int]] = []

    def make_node(node_rank: int, num_nodes: int, mtu: int) -> Namespaces:
        made.append((node_rank, num_nodes, mtu))
        return Namespaces(10 * node_rank + 10, 10 * node_rank + 11, 99)

    monkeypatch.setattr(sys, "argv", ["switch", SETTINGS])
    monkeypatch.setattr(switch, "make_shared", lambda num_nodes: Shared(5, user))
    monkeypatch.setattr(switch, "make_node", make_node)
    monkeypatch.setattr(switch, "_say", said.append)
    monkeypatch.setattr(Switch, "serve", lambda self: served.append(self._frame_bytes))
    assert switch.main() == 0
    assert said == [{"descriptors": f"/proc/{os.getpid()}/fd", "nodes": expected}]
    assert (made, served) == ([(0, 2, mtu), (1, 2, mtu)], [mtu + 18])


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError(1, "not permitted"), "not permitted"), (OSError(2, "missing", "/dev/net/tun"), "missing /dev/net/tun")],
)
def test_switch_that_may_not_make_nodes_says_why(error: OSError, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(num_nodes: int) -> Shared:
        raise error

    answers: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "argv", ["switch", SETTINGS])
    monkeypatch.setattr(switch, "make_shared", refuse)
    monkeypatch.setattr(switch, "_say", answers.append)
    assert (switch.main(), answers) == (1, [{"error": said}])


# ---- the launcher's side ---------------------------------------------------------------------------------------------


class FakeSwitch:
    """Stands for the switch's process: the test answers its requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from_us, self._to_us = os.pipe()
        from_launcher, to_launcher = os.pipe()
        self.stdin, self.stdout = open(self._to_us, "wb", buffering=0), open(from_launcher, "rb", buffering=0)  # noqa: SIM115
        self.requests = open(from_us, "rb", buffering=0)  # noqa: SIM115
        self._answers = open(to_launcher, "wb", buffering=0)  # noqa: SIM115
        self.ends, self.acts = True, list[str]()
        self.commands: list[tuple[list[str], dict[str, Any]]] = []
        self.files = (self.stdin, self.stdout, self.requests, self._answers)
        monkeypatch.setattr(launchers, "_check_system", lambda: None)
        monkeypatch.setattr(subprocess, "Popen", self)

    def __call__(self, command: list[str], **settings: Any) -> FakeSwitch:
        self.commands.append((command, settings))
        return self

    def say(self, *answers: str) -> None:
        for answer in answers:
            self._answers.write(answer.encode())

    def hang_up(self) -> None:
        self._answers.close()

    def wait(self, timeout: float | None = None) -> None:
        self.acts.append(f"wait {timeout}")
        if timeout is not None and not self.ends:
            raise subprocess.TimeoutExpired("switch", timeout)

    def kill(self) -> None:
        self.acts.append("kill")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSwitch]:
    found = FakeSwitch(monkeypatch)
    yield found
    for file in found.files:
        file.close()


READY = '{"descriptors": "/proc/9/fd", "nodes": [[3, 4], [3, 5]]}\n'


def test_network_starts_its_switch_and_enters_a_node_through_its_descriptors(fake: FakeSwitch) -> None:
    fake.say(READY)
    with Network(2, Link(1e6, 0.5)) as network:
        ((command, settings),) = fake.commands
        assert command[:-1] == [sys.executable, "-P", "-m", "frog.launch.network.switch"]
        assert json.loads(command[-1])["num_nodes"] == 2
        assert json.loads(command[-1])["link"]["delay_s"] == 0.5
        assert (settings["start_new_session"], settings["bufsize"]) == (True, 0)
        module = [sys.executable, "-P", "-m", "frog.launch.network.namespaces"]
        assert network.enter(1, ["my", "-x"]) == [*module, "/proc/9/fd/3", "/proc/9/fd/5", "--", "my", "-x"]
        assert network.address(1) == "10.77.0.2"
    assert (fake.acts, fake.stdin.closed, fake.stdout.closed) == (["wait 10"], True, True)
    network._end()  # nothing is left to end
    assert fake.acts == ["wait 10"]


def test_switch_that_does_not_end_is_killed(fake: FakeSwitch) -> None:
    fake.say(READY)
    fake.ends = False
    with Network(2, Link()):
        pass
    assert fake.acts == ["wait 10", "kill", "wait None"]


def test_requests_have_answers_of_one_line(fake: FakeSwitch) -> None:
    fake.say(READY)
    with Network(2, Link(1e6)) as network:
        for act in (network.cut, network.heal):
            fake.say("{}\n")
            act(1)
        later = threading.Timer(0.05, fake.say, ['15, "more": "' + "x" * 70_000 + '"}\n'])
        fake.say('{"nodes": [], "worst_late_s": 0.')
        later.start()
        found = network.describe()
        assert (found["worst_late_s"], len(found["more"]), found["mtu"]) == (0.15, 70_000, 1500)
        assert [json.loads(line) for line in fake.requests.read(1 << 16).splitlines()] == [
            {"act": "cut", "node_rank": 1}, {"act": "heal", "node_rank": 1}, {"act": "describe", "node_rank": None},
        ]  # fmt: skip


def test_silent_switch_is_given_a_minute(fake: FakeSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 1000.0, list[float]()

    def select(*args: Any) -> tuple[list[Any], list[Any], list[Any]]:
        nonlocal now
        waits.append(args[3])
        now += 25.0
        return (args[0] if len(waits) < 3 else [], [], [])

    monkeypatch.setattr(launchers, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(launchers, "select", SimpleNamespace(select=select))
    network = Network(2, Link())
    fake.stdout = SimpleNamespace(read=lambda size: b" ", close=lambda: None)  # type: ignore[assignment]
    with pytest.raises(LaunchError, match="the network's switch has not answered for 60 s"), network:
        pytest.fail("it is up")
    assert (waits, fake.acts) == ([60.0, 35.0, 10.0], ["wait 10"])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"error": "unshare: No space"}\n', "this system does not permit programs to create networks: unshare: No"),
        ("", "the network's switch has ended"),
        ('{"nodes": 5}\n', "an answer from the network's switch"),
    ],
)
def test_switch_that_cannot_start_is_ended(answer: str, said: str, fake: FakeSwitch) -> None:
    fake.say(answer)
    fake.hang_up()
    with pytest.raises(LaunchError, match=said), Network(2, Link()):
        pytest.fail("it is up")
    assert fake.acts == ["wait 10"]


@pytest.mark.parametrize(("num_nodes", "node", "is_valid"), [(1, 0, True), (3, 2, True), (3, 3, False), (3, -1, False)])
def test_only_nodes_of_the_network_can_be_cut(num_nodes: int, node: int, is_valid: bool, fake: FakeSwitch) -> None:
    fake.say(READY)
    with Network(num_nodes, Link()) as network:
        if is_valid:
            fake.say("{}\n")
            network.cut(node)
        else:
            with pytest.raises(UsageError, match=f"cut node {node}: the network has nodes 0 to 2"):
                network.cut(node)
            with pytest.raises(UsageError, match=f"heal node {node}"):
                network.heal(node)
    with pytest.raises(LaunchError, match="cut: the network is not up"):
        network.cut(0)


@pytest.mark.parametrize(("num_nodes", "is_valid"), [(0, False), (1, True), (64, True), (65, False)])
def test_network_has_at_most_64_nodes(num_nodes: int, is_valid: bool) -> None:
    if is_valid:
        assert Network(num_nodes, Link()).num_nodes == num_nodes
    else:
        with pytest.raises(UsageError, match=f"--network supports 1 to 64 nodes, not {num_nodes}"):
            Network(num_nodes, Link())


# ---- entering a node -------------------------------------------------------------------------------------------------


def test_program_replaces_the_process_that_entered_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(namespaces, "enter", lambda paths: seen.append([*paths]))
    monkeypatch.setattr(os, "execvp", lambda name, command: seen.append((name, command)))
    namespaces.main(["/a", "/b", "--", "my", "--", "-x"])
    assert seen == [["/a", "/b"], ("my", ["my", "--", "-x"])]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(1, "Operation not permitted"), "error: my inside a node of --network: Operation not permitted\n"),
        (OSError(2, "No such file", "/a"), "error: my inside a node of --network: No such file /a\n"),
    ],
)
def test_node_that_cannot_be_entered_is_an_error(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(paths: list[str]) -> None:
        raise error

    monkeypatch.setattr(namespaces, "enter", refuse)
    assert namespaces.main(["/a", "--", "my"]) == 127
    assert capsys.readouterr().err == said


def test_namespaces_are_entered_in_order_and_the_folder_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    moves: list[str] = []
    paths = [tmp_path / name for name in ("user", "net")]
    for path in paths:
        path.touch()

    def call_libc(name: str, descriptor: int, kinds: int) -> None:
        calls.append((name, os.readlink(f"/proc/self/fd/{descriptor}"), kinds))

    monkeypatch.setattr(namespaces, "call_libc", call_libc)
    monkeypatch.setattr(os, "getcwd", lambda: "/here")
    monkeypatch.setattr(os, "chdir", moves.append)
    namespaces.enter(map(str, paths))
    assert calls == [("setns", str(path), 0) for path in paths]
    assert moves == ["/here"]


def test_structures_of_the_kernel_have_their_sizes_and_places() -> None:
    """`struct ifreq` is 40 bytes on a 64-bit system: a name of 16, a union of 24; `sockaddr_in` is 16 bytes."""
    request = namespaces._request("eth0", b"value")
    assert (len(request), request[:5], request[16:22]) == (40, b"eth0\0", b"value\0")
    address = namespaces._internet("10.77.0.2")
    assert (len(address), address[2:]) == (16, bytes([0, 0, 10, 77, 0, 2]) + bytes(8))
    assert struct.unpack_from("=H", address) == (socket.AF_INET,)


@pytest.mark.parametrize("has_user", [False, True])
def test_names_of_the_nodes_are_mounted_over_the_hosts_file(has_user: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts: list[tuple[Any, ...]] = []
    hosts: list[str] = []

    def call_libc(name: str, *args: Any) -> None:
        mounts.append((name, *args))
        if args[1] == b"/etc/hosts":
            hosts.append(Path(args[0].decode()).read_text())
            assert Path(args[0].decode()).stat().st_mode & 0o777 == 0o644

    monkeypatch.setattr(namespaces, "call_libc", call_libc)
    monkeypatch.setattr(namespaces, "unshare_as_same_user", lambda kinds: has_user)
    monkeypatch.setattr(namespaces, "_hold", lambda kind: {"user": 4, "mnt": 5}[kind])
    assert namespaces.make_shared(2) == Shared(5, 4 if has_user else None)
    own = ["10.77.0.1 node0\n", "10.77.0.2 node1\n", "::ffff:10.77.0.1 node0\n", "::ffff:10.77.0.2 node1\n"]
    assert hosts == ["".join(own) + Path("/etc/hosts").read_text()]
    # MS_REC | MS_SLAVE: nothing that is mounted here appears outside; then MS_BIND.
    assert [mount[-2] for mount in mounts] == [0x4000 | 0x80000, 0x1000]
