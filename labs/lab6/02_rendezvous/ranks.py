"""Run the learner's join on simulated hosts, in processes that take turns; then in three processes over TCP."""

import contextlib
import functools
import json
import os
import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from frog.learn.grader.turns import Turns, pretend_clock

Address = tuple[str, int]
PATIENCE = 20
"""Multiple of timeout_s during which processes may poll while nothing is sent."""
GARBAGE = object()
pretend_clock()


class Died(BaseException):
    """Ends a process in the middle of join."""


class End:
    """One end of a simulated connection."""

    def __init__(self, net: "Net", who: int, own: Address, peer: Address) -> None:
        self.net, self.who, self.own, self.peer = net, who, own, peer
        self.inbox: deque[Any] = deque()
        self.other: End = self
        self.is_open = True

    @property
    def has_news(self) -> bool:
        return bool(self.inbox) or not self.other.is_open

    def send(self, message: Any) -> None:
        text = json.dumps(message)
        self.net.do(self.who, f"send to {self.peer[0]}:{self.peer[1]}", lambda: self.put(text))

    def put(self, text: Any) -> None:
        if not self.is_open:
            raise OSError("send on a closed connection")
        if self.other.is_open:  # what is sent to an end that has closed is lost
            self.other.inbox.append(text)
        self.net.sent.add(self.who)

    def receive(self, timeout_s: float) -> Any:
        self.net.maybe_die(self.who, self)
        began_s = time.monotonic()
        try:
            text = self.net.do(self.who, "receive", self.take, lambda: self.has_news or not self.is_open, timeout_s)
        finally:
            waited_s = time.monotonic() - began_s
            if self.other.who in self.net.strangers:
                self.net.waited_s[self.who] = max(waited_s, self.net.waited_s.get(self.who, 0.0))
        if text is GARBAGE:
            raise ValueError("the bytes are not a frame")
        return json.loads(text)

    def take(self) -> Any:
        if not self.is_open:
            raise OSError("receive on a closed connection")
        if not self.inbox:
            raise EOFError(f"{self.peer[0]}:{self.peer[1]} has closed the connection")
        return self.inbox.popleft()

    def close(self) -> None:
        self.net.do(self.who, "close", lambda: setattr(self, "is_open", False))


class Port:
    """An open port of a simulated host."""

    def __init__(self, net: "Net", who: int, address: Address) -> None:
        self.net, self.who, self.address = net, who, address
        self.queue: deque[End] = deque()
        self.is_open = True

    @property
    def has_news(self) -> bool:
        return bool(self.queue)

    def accept(self, timeout_s: float) -> End:
        return self.net.do(self.who, "accept", self.queue.popleft, lambda: self.has_news, timeout_s)

    def close(self) -> None:
        self.net.do(self.who, "close", lambda: self.net.shut(self))


class View:
    """The network as one process sees it."""

    def __init__(self, net: "Net", who: int, host: str) -> None:
        self.net, self.who, self.host = net, who, host

    def listen(self, port: int) -> Port:
        return self.net.do(self.who, f"listen({port})", lambda: self.net.open(self.who, self.host, int(port)))

    def connect(self, address: Any) -> End:
        host, port = address
        return self.net.do(self.who, "connect", lambda: self.net.join(self.who, self.host, (host, int(port))))

    def ready(self, sources: list[Any], timeout_s: float) -> list[Any]:
        self.net.maybe_die(self.who, next((one for one in sources if isinstance(one, End)), None))
        found: Callable[[], list[Any]] = lambda: [one for one in sources if one.has_news]  # noqa: E731
        try:
            return self.net.do(self.who, "ready", found, lambda: bool(found()), timeout_s)
        except TimeoutError:
            return []


class Net:
    """Hosts, ports and connections."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.draw = case, random.Random(case["seed"])
        self.turns = Turns(case["seed"], len(case["processes"]), PATIENCE * case["timeout_s"])
        self.ports: dict[Address, Port] = {}
        self.all: list[Port | End] = []
        self.free: dict[str, list[int]] = {}
        """Ports that were closed; a system may give them to the next process that asks."""
        self.sent: set[int] = set()
        self.strangers = {who for who, one in enumerate(case["processes"]) if one["kind"] not in ("joins", "dies")}
        self.waited_s: dict[int, float] = {}
        """The longest time for which each process waited for a message of a stranger."""
        self.failed: dict[int, str] = {}
        """The last call of each process that failed."""
        self.closed: set[tuple[int, Address]] = set()
        for host, port in case["busy"]:
            self.ports[host, port] = Port(self, -1, (host, port))

    def do(
        self, who: int, does: str, operation: Callable[[], Any], is_ready: Any = None, timeout_s: float | None = None
    ) -> Any:
        limit_s = None if timeout_s is None else max(0.0, timeout_s)
        found = self.turns.do(who, does, operation, is_ready=is_ready or (lambda: True), timeout_s=limit_s)
        self.turns.write()
        return found

    def maybe_die(self, who: int, end: End | None) -> None:
        """End a process that is to die when it waits for the answer to its first message, once that has been read."""
        if self.case["processes"][who]["kind"] != "dies" or who not in self.sent:
            return
        with contextlib.suppress(TimeoutError):
            self.do(who, "ends", lambda: None, lambda: end is None or not end.other.inbox, 0.2 * self.case["timeout_s"])
        for one in self.all:
            if one.who == who and one.is_open:
                self.shut(one)
        self.turns.write()
        raise Died

    def shut(self, one: Port | End) -> None:
        one.is_open = False
        if isinstance(one, Port) and self.ports.get(one.address) is one:
            del self.ports[one.address]
            self.free.setdefault(one.address[0], []).append(one.address[1])
            self.closed.add((one.who, one.address))
            for end in one.queue:
                end.is_open = False

    def open(self, who: int, host: str, port: int) -> Port:
        if port == 0:
            reused = self.free.get(host, [])
            port = reused.pop() if reused else self.unused(host)
        if (host, port) in self.ports:
            self.failed[who] = f"in use {port}"
            raise OSError(98, f"port {port} of {host} is in use")
        self.failed.pop(who, None)
        made = self.ports[host, port] = Port(self, who, (host, port))
        self.free[host] = [other for other in self.free.get(host, []) if other != port]
        self.all.append(made)
        return made

    def unused(self, host: str) -> int:
        while (host, port := self.draw.randrange(40_000, 60_000)) in self.ports:
            pass
        return port

    def join(self, who: int, host: str, address: Address) -> End:
        place = (host, address[1]) if address[0] in ("127.0.0.1", "localhost") else address
        if place not in self.ports or self.ports[place].who < 0:
            self.failed[who] = "refused"
            raise ConnectionRefusedError(111, f"no process listens at {address[0]}:{address[1]}")
        self.failed.pop(who, None)
        listener = self.ports[place]
        own = (host, self.unused(host))
        near, far = End(self, who, own, listener.address), End(self, listener.who, listener.address, own)
        near.other, far.other = far, near
        listener.queue.append(far)
        self.all += [near, far]
        return near


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [rendezvous(learner, one) for one in case["runs"]]


def rendezvous(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Let processes join, each at its time, and strangers connect to the meeting."""
    net = Net(case)
    gave: dict[str, dict[str, Any]] = {}
    kept: list[Any] = []

    def be(who: int) -> None:
        about = case["processes"][who]
        if about["start_s"]:
            time.sleep(about["start_s"])
        view = View(net, who, about["host"])
        if about["kind"] not in ("joins", "dies"):
            disturb(net, who, view, about["kind"])
            return
        began_s = time.monotonic()
        try:
            gave[str(who)] = outcome(learner, view, case, kept)
        except Died:
            gave[str(who)] = {"died": True}
        gave[str(who)] |= {"took_s": time.monotonic() - began_s, "failed": net.failed.get(who, "")}

    errors = net.turns.run([lambda who=who: be(who) for who in range(len(case["processes"]))])
    if errors:
        raise errors[0]
    ports = [one for one in net.all if isinstance(one, Port)]
    return {
        "gave": gave,
        "stuck": net.turns.stopped or "",
        "does": {str(who): net.turns.does.get(who, "") for who in sorted(net.turns.waiting)},
        "open": [
            [one.who, type(one).__name__, *(one.address if isinstance(one, Port) else one.peer)]
            for one in net.all
            if one.is_open and one.who >= 0 and one.who not in net.strangers and one not in kept
        ],
        "meetings": [[one.who, *one.address] for one in ports if one.address[1] == case["meeting"][1]],
        "ends": [[one.who, *one.own] for one in net.all if isinstance(one, End)],
        "ports": [[one.who, *one.address] for one in ports],
        "closed": [[who, *address] for who, address in net.closed],
        "waited_s": {str(who): seconds for who, seconds in net.waited_s.items()},
    }  # fmt: skip


def disturb(net: Net, who: int, view: View, kind: str) -> None:
    """Connect to the meeting as something that is not a process of this world."""
    for _ in range(200):
        try:
            end = view.connect(tuple(net.case["meeting"]))
        except ConnectionRefusedError:
            time.sleep(0.02 * net.case["timeout_s"])
            continue
        if kind == "closes":
            end.close()
        elif kind != "silent":
            net.do(who, "send", functools.partial(end.put, GARBAGE if kind == "garbage" else kind))
        return


def outcome(learner: ModuleType, view: Any, case: dict[str, Any], kept: list[Any]) -> dict[str, Any]:
    try:
        world = learner.join(view, tuple(case["meeting"]), case["size"], case["timeout_s"])
    except TimeoutError:
        return {"timeout": True}
    except (OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError) as error:
        if isinstance(error, NotImplementedError):
            raise
        return {"error": f"{type(error).__name__}: {error}"}
    kept.append(world.listener)
    return {
        "rank": world.rank,
        "addresses": [[str(host), int(port)] for host, port in world.addresses],
        "listens": [*world.listener.address, bool(getattr(world.listener, "is_open", True))],
    }


# ---- over TCP --------------------------------------------------------------------------------------------------------


class RealConnection:
    """A message is a line of JSON."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.data = sock, b""
        self.peer = sock.getpeername()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Any) -> None:
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float) -> Any:
        self.sock.settimeout(max(timeout_s, 0.001))
        while b"\n" not in self.data:
            part = self.sock.recv(4096)
            if not part:
                raise EOFError("closed")
            self.data += part
        line, _, self.data = self.data.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        self.sock.close()


class RealListener:
    def __init__(self, network: "RealNetwork", name: Path | None) -> None:
        self.network, self.name = network, name
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.address = self.sock.getsockname()
        self.is_open = True
        if name is not None:
            try:
                os.link(self.written(), name)  # fails if another process serves
            except FileExistsError:
                self.sock.close()
                raise OSError(98, "the port is in use") from None

    def written(self) -> Path:
        path = Path(f"port.{os.getpid()}")
        path.write_text(str(self.address[1]))
        return path

    def fileno(self) -> int:
        return self.sock.fileno()

    def accept(self, timeout_s: float) -> RealConnection:
        self.sock.settimeout(max(timeout_s, 0.001))
        return RealConnection(self.sock.accept()[0])

    def close(self) -> None:
        self.is_open = False
        if self.name is not None:
            self.name.unlink(missing_ok=True)
        self.sock.close()


class RealNetwork:
    """TCP on this machine. A file says which real port stands for the meeting's."""

    host = "127.0.0.1"

    def listen(self, port: int) -> RealListener:
        return RealListener(self, Path(f"meeting.{port}") if port else None)

    def connect(self, address: Any) -> RealConnection:
        try:
            port = int(Path(f"meeting.{address[1]}").read_text())
        except FileNotFoundError:
            raise ConnectionRefusedError(111, "no process listens there") from None
        return RealConnection(socket.create_connection(("127.0.0.1", port)))

    def ready(self, sources: list[Any], timeout_s: float) -> list[Any]:
        waiting = [one for one in sources if isinstance(one, RealConnection) and b"\n" in one.data]
        return waiting or select.select(sources, [], [], max(timeout_s, 0.0))[0]


def over_tcp(learner: ModuleType, case: dict[str, Any]) -> Any:
    kept: list[Any] = []
    found = outcome(learner, RealNetwork(), case, kept)
    return found | {"rank of the process": int(os.environ["RANK"])}
