"""A real network between network namespaces: names, addresses, delay, rate, cuts and cleanup."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import LIMIT_S, all_gone, wait_until

from frog.core.errors import LaunchError, UsageError
from frog.launch.network import Link, Network, parse_network

SOURCE = Path(__file__).parents[3] / "src"

ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 9000))
print("up", flush=True)
while True:
    s.sendto(*s.recvfrom(64))
"""

PING = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(float(sys.argv[3]))
try:
    for _ in range(int(sys.argv[2])):
        start = time.monotonic()
        s.sendto(b"x", (sys.argv[1], 9000))
        s.recv(64)
        print(time.monotonic() - start)
except TimeoutError:
    print("nothing")
"""

SINK = """
import hashlib, socket, time
s = socket.create_server(("", 9001))
print("up", flush=True)
c, _ = s.accept()
found = hashlib.sha256()
c.recv_into(bytearray(1))
print("begun", flush=True)
while part := c.recv(1 << 20):
    found.update(part)
print(time.monotonic(), found.hexdigest())
"""

FLOOD = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 9001))
print(time.monotonic())
s.sendall(b"x" + bytes(int(sys.argv[2])))
"""

STREAM = """
import hashlib, random, select, socket, sys
s = socket.create_connection((sys.argv[1], 9001))
s.sendall(b"x")
sent = hashlib.sha256()
while not select.select([sys.stdin], [], [], 0)[0]:
    part = random.randbytes(100_000)
    s.sendall(part)
    sent.update(part)
print(sent.hexdigest())
"""
"""Sends until its input ends."""


@pytest.fixture(scope="module")
def network(may_make_networks: None) -> Iterator[Network]:
    with Network(2, parse_network("rate=20mbit delay=15ms")) as made:
        yield made


def inside(network: Network, node: int, code: str, *words: str) -> subprocess.Popen[str]:
    command = network.enter(node, [sys.executable, "-c", code, *words])
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def output(network: Network, node: int, code: str, *words: str) -> str:
    return inside(network, node, code, *words).communicate(timeout=LIMIT_S)[0]


def ping(network: Network, source: int, target: int, num: int = 1, timeout_s: float = 30) -> list[str]:
    return output(network, source, PING, network.address(target), str(num), str(timeout_s)).split()


@pytest.fixture
def echo(network: Network) -> Iterator[None]:
    """Start a program on node 0 that returns every datagram to its sender."""
    server = inside(network, 0, ECHO)
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    yield
    server.kill()
    server.communicate()


def test_each_node_has_its_own_name_and_address(network: Network, tmp_path: Path) -> None:
    code = (
        "import os, socket, sys;"
        "print(socket.gethostname(), [name for _, name in socket.if_nameindex()], os.getcwd(), os.geteuid(),"
        "socket.gethostbyname('node0'), socket.gethostbyname('node1'), socket.getfqdn('10.77.0.2'),"
        "open(sys.argv[1]).read())"
    )
    (tmp_path / "file").write_text("same files")
    for node in range(2):
        told = output(network, node, code, str(tmp_path / "file")).strip()
        around = f"{os.getcwd()} {os.geteuid()}"
        names = "10.77.0.1 10.77.0.2 node1 same files"
        assert told == f"node{node} ['lo', '{network.interface}'] {around} {names}"
    assert [network.address(node) for node in range(2)] == ["10.77.0.1", "10.77.0.2"]


def test_program_inside_a_node_keeps_its_process_id(network: Network) -> None:
    program = inside(network, 1, "import os; print(os.getpid())")
    assert int(program.communicate(timeout=LIMIT_S)[0]) == program.pid


def test_missing_command_inside_a_node_is_reported(network: Network) -> None:
    done = subprocess.run(network.enter(1, ["no-such-thing"]), capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (
        127,
        "error: no-such-thing inside a node of --network: No such file or directory\n",
    )


def test_round_trip_takes_two_delays(network: Network, echo: None) -> None:
    times = [float(word) for word in ping(network, 1, 0, num=5)]
    assert len(times) == 5
    assert min(times) >= 2 * network.link.delay_s


def test_each_node_has_its_own_loopback(network: Network, echo: None) -> None:
    code = PING.replace("sys.argv[1]", "'127.0.0.1'")
    assert output(network, 1, code, "-", "1", "0.2").split() == ["nothing"]
    assert len(output(network, 0, code, "-", "1", "30").split()) == 1


def transfer(network: Network, code: str, *words: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    sink = inside(network, 0, SINK)
    assert sink.stdout is not None
    assert sink.stdout.readline() == "up\n"
    source = inside(network, 1, code, network.address(0), *words)
    assert sink.stdout.readline() == "begun\n"
    return sink, source


def test_stream_is_limited_to_the_link_rate_and_counted(network: Network) -> None:
    before = network.describe()["nodes"]
    num_bytes = 1_000_000
    sink, source = transfer(network, FLOOD, str(num_bytes))
    end_s = float(sink.communicate(timeout=LIMIT_S)[0].split()[0])
    start_s = float(source.communicate(timeout=LIMIT_S)[0])
    assert source.returncode == 0
    assert end_s - start_s >= 8 * num_bytes / network.link.rate_bits_per_s
    after = network.describe()["nodes"]
    grown = [[node[name] - old[name] for name in ("sent_bytes", "received_bytes")] for old, node in zip(before, after)]  # noqa: B905
    assert num_bytes < grown[1][0] < 1.5 * num_bytes
    assert num_bytes < grown[0][1] < 1.5 * num_bytes


def test_cut_node_is_unreachable_until_it_heals(network: Network, echo: None) -> None:
    assert ping(network, 1, 0) != ["nothing"]
    before = network.describe()["nodes"]
    network.cut(1)
    try:
        assert ping(network, 1, 0, timeout_s=0.3) == ["nothing"]
        nodes = network.describe()["nodes"]
        assert [node["is_cut"] for node in nodes] == [False, True]
        assert sum(node["cut_frames"] for node in nodes) > sum(node["cut_frames"] for node in before)
        assert nodes[0]["received_frames"] == before[0]["received_frames"]
    finally:
        network.heal(1)
    assert ping(network, 1, 0) != ["nothing"]


def test_stream_continues_after_a_short_cut(network: Network) -> None:
    sink, source = transfer(network, STREAM)
    network.cut(0)
    gone = network.describe()["nodes"][0]["cut_frames"]
    wait_until(lambda: network.describe()["nodes"][0]["cut_frames"] > gone, "frames into the cut")
    network.heal(0)
    sent = source.communicate(timeout=LIMIT_S)[0].strip()  # this also closes its stdin
    assert source.returncode == 0
    assert sink.communicate(timeout=LIMIT_S)[0].split()[1] == sent


@pytest.mark.parametrize("num_nodes", [2, 9, 10, 64])
def test_network_addresses_sort_as_text_in_node_order(num_nodes: int) -> None:
    """torchrun numbers the nodes by sorting their addresses as text."""
    network = Network(num_nodes, Link())
    addresses = [network.address(node) for node in range(num_nodes)]
    assert addresses == sorted(addresses)
    assert len(set(addresses)) == num_nodes


def test_cut_of_a_missing_node_is_rejected(network: Network) -> None:
    with pytest.raises(UsageError, match="cut node 2: the network has nodes 0 to 1"):
        network.cut(2)
    with pytest.raises(UsageError, match="supports 1 to 64 nodes, not 65"):
        Network(65, Link())


def switch_of(network: Network) -> psutil.Process:
    assert network._switch is not None
    return psutil.Process(network._switch.pid)


def test_network_leaves_no_process_or_file_behind(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    hosts = Path("/etc/hosts").read_text()
    with Network(3, Link(delay_s=0.001)) as other:
        switch = switch_of(other)
        assert "10.77.0.3 node2" in output(other, 2, "print(open('/etc/hosts').read())")
        assert Path("/etc/hosts").read_text() == hosts
        assert list(tmp_path.iterdir()) == []
    assert not switch.is_running()
    with pytest.raises(LaunchError, match="the network is not up"):
        other.cut(0)


OWNER = """
import sys
from frog.launch.network import Link, Network
with Network(2, Link()) as network:
    print(network._switch.pid, flush=True)
    sys.stdin.read()
"""


def test_switch_ends_when_its_owner_is_killed(network: Network) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    switch = psutil.Process(int(owner.stdout.readline()))
    held = [f"/proc/{switch.pid}/fd/{name}" for name in os.listdir(f"/proc/{switch.pid}/fd")]
    nets = {os.readlink(path) for path in held if os.readlink(path).startswith("net:")}
    assert len(nets) == 2
    owner.kill()
    owner.communicate()
    wait_until(lambda: all_gone([switch]), "the switch's end")
    assert not nets & set(open_networks())


def open_networks() -> Iterator[str]:
    """List the network namespaces of all processes."""
    for process in psutil.process_iter():
        try:
            yield os.readlink(f"/proc/{process.pid}/ns/net")
        except OSError:
            continue


def test_ended_switch_is_reported(network: Network) -> None:
    with Network(2, Link()) as other:
        switch_of(other).kill()
        switch_of(other).wait()
        with pytest.raises(LaunchError, match="switch has ended"):
            other.cut(0)


UNPRIVILEGED = """
import subprocess, sys
from frog.core.errors import LaunchError
from frog.launch.network import Link, Network
code = "import os, socket; print(os.geteuid(), socket.gethostname(), socket.gethostbyname('node0'))"
try:
    with Network(2, Link(delay_s=0.001)) as network:
        subprocess.run(network.enter(1, [sys.executable, "-c", code]), check=True)
        subprocess.run(network.enter(1, ["grep", "CapEff", "/proc/self/status"]), check=True)
except LaunchError as error:
    print("refused:", error.what)
"""


AGAIN = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import frog.launch.network"], check=True)
"""


def run_as(prefix: list[str], code: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run the code with this checkout's frog after `prefix`: as another user, or with fewer permissions."""
    words = [*prefix, python, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env=env, cwd="/")


def test_unprivileged_user_can_create_networks(network: Network) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: every other test here is this test")
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv (util-linux) to become another user with")
    other_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    for python in (sys.executable, "/usr/bin/python3"):
        if not run_as(other_user, AGAIN, python).returncode:
            break
    else:
        pytest.skip("user 65534 can read neither this Python nor /usr/bin/python3, or not this checkout")
    done = run_as(other_user, UNPRIVILEGED, python)
    if "refused:" in done.stdout:
        pytest.skip(f"user 65534 is {done.stdout.strip()}")
    assert done.stdout.split() == ["65534", "node1", "10.77.0.1", "CapEff:", "0000000000000000"], done.stderr


def test_system_that_forbids_networks_is_reported(network: Network) -> None:
    """The code runs in a user namespace that may not create network namespaces."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare (util-linux)")
    restricted = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    forbid = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    done = run_as([*restricted, forbid, "sh"], UNPRIVILEGED)
    if done.returncode and "Traceback" not in done.stderr:
        pytest.skip(f"cannot forbid networks here: {done.stderr.strip()}")
    assert "refused: this system does not permit programs to create networks: unshare: No space" in done.stdout


SHARED = """
from pathlib import Path
from frog.launch.network import Link, Network
before = Path("/etc/hosts").read_text()
with Network(2, Link()):
    print("kept" if Path("/etc/hosts").read_text() == before else "changed")
"""


def test_node_names_do_not_leak_through_shared_mounts(network: Network) -> None:
    """Every mount is shared, as systemd makes them."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare (util-linux)")
    done = run_as(["unshare", "--user", "--map-root-user", "--mount", "--propagation", "shared"], SHARED)
    if "unshare:" in done.stderr and "Traceback" not in done.stderr:
        pytest.skip(f"no shared mounts here: {done.stderr.strip()}")
    assert done.stdout == "kept\n", done.stderr


def test_network_is_refused_outside_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    refused: Any = None
    try:
        Network(2, Link()).__enter__()
    except LaunchError as error:
        refused = error
    assert refused is not None
    assert refused.what == "--network needs Linux's network namespaces; this is darwin"
    assert "omit --network" in refused.hint
