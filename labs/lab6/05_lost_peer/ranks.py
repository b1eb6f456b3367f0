"""Run the learner's all-reduce on simulated ranks of which one ends, freezes or is late, at a chosen call."""

import time
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from frog.learn.grader.turns import Turns, pretend_clock

BASE = 8
PATIENCE = 100
"""Multiple of timeout_s during which ranks may poll while no frame is sent."""
MOST = 10
"""Multiple of timeout_s after which a rank that still waits for a lost one gives up."""
pretend_clock()


class Ended(BaseException):
    """Ends the lost rank."""


class GaveUp(BaseException):
    """Ends a rank that has waited far too long."""


def inputs_of(size: int, numel: int) -> list[Tensor]:
    """Return each rank's input: BASE to the power of its rank, so that a sum says which ranks counted."""
    return [torch.full((numel,), BASE**rank, dtype=torch.int64) for rank in range(size)]


class Net:
    """Connections between all ranks, of which one is lost at its n-th call."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.timeout_s = case, case["timeout_s"]
        self.turns = Turns(case["seed"], case["size"], PATIENCE * self.timeout_s, case["quick"], case["slow"])
        self.queues: dict[tuple[int, int], deque[Any]] = {}
        self.closed: set[int] = set()
        self.calls = 0
        self.lost_s: float | None = None
        self.clues: dict[int, list[list[Any]]] = {rank: [] for rank in range(case["size"])}
        """What each rank learned: errors of a call, and frames about a lost rank, each with a rank."""

    def before_call(self, rank: int) -> None:
        """Lose the rank if this is the call before which the case says so."""
        if self.lost_s is not None and self.turns.now_s > self.lost_s + MOST * self.timeout_s:
            raise GaveUp
        if rank != self.case["lost"] or self.case["kind"] not in ("ends", "freezes"):
            return
        self.calls += 1
        if self.calls <= self.case["at"]:
            return
        self.lost_s = self.turns.now_s
        if self.case["kind"] == "freezes":
            try:
                self.turns.do(rank, "frozen", is_ready=lambda: False, timeout_s=2 * MOST * self.timeout_s)
            except TimeoutError:
                raise Ended from None
        raise Ended

    def close(self, rank: int) -> None:
        def close() -> None:
            self.closed.add(rank)
            self.turns.write()

        self.turns.do(rank, "ends", close)

    def send(self, rank: int, to: int, frame: Any) -> None:
        self.before_call(rank)

        def put() -> None:
            if to in self.closed:
                self.clues[rank].append(["send", to])
                raise ConnectionError(f"the connection to rank {to} is closed")
            self.queues.setdefault((rank, to), deque()).append(frame)
            self.turns.write()

        self.turns.do(rank, f"send to rank {to}", put)

    def receive(self, rank: int, source: int, timeout_s: float) -> Any:
        self.before_call(rank)
        queue = self.queues.setdefault((source, rank), deque())

        def take() -> Any:
            if not queue:
                self.clues[rank].append(["receive", source])
                raise ConnectionError(f"the connection to rank {source} is closed")
            self.turns.write()
            return queue.popleft()

        def is_ready() -> bool:
            return bool(queue) or source in self.closed

        limit_s = None if timeout_s is None else max(0.0, timeout_s)
        try:
            frame = self.turns.do(rank, f"receive from rank {source}", take, is_ready=is_ready, timeout_s=limit_s)
        except TimeoutError:
            self.clues[rank].append(["time-out", source])
            raise
        if hasattr(frame, "rank"):
            self.clues[rank].append(["frame", frame.rank])
        return frame


class SimulatedPeers:
    """A rank's connections."""

    def __init__(self, net: Net, rank: int) -> None:
        self._net, self.rank, self.size = net, rank, net.case["size"]

    def send(self, to: int, frame: Any) -> None:
        self._net.send(self.rank, self._checked(to), frame)

    def receive(self, source: int, timeout_s: float) -> Any:
        return self._net.receive(self.rank, self._checked(source), timeout_s)

    def _checked(self, peer: int) -> int:
        if peer == self.rank or peer not in range(self.size):
            raise ValueError(f"rank {self.rank} of {self.size} has no connection to rank {peer}")
        return peer


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [lose_one(learner, one) for one in case["runs"]]


def lose_one(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    size, net = case["size"], Net(case)
    values = inputs_of(size, case["numel"])
    ranks: dict[str, dict[str, Any]] = {}

    def be(rank: int) -> None:
        peers = SimulatedPeers(net, rank)
        if case["kind"] == "late" and rank == case["lost"]:
            time.sleep(case["late_s"])
        try:
            ranks[str(rank)] = outcome(learner, values[rank], peers, case["timeout_s"])
        except Ended:
            ranks[str(rank)] = {"ended": True}
            if case["kind"] == "freezes":
                return
        ranks[str(rank)]["at_s"] = net.turns.now_s - (net.lost_s or net.turns.now_s)
        if "returned" not in ranks[str(rank)]:
            net.close(rank)

    functions: list[Callable[[], None]] = [lambda rank=rank: be(rank) for rank in range(size)]
    errors = net.turns.run(functions)
    if errors:
        raise errors[0]
    return {
        "ranks": ranks,
        "values": values,
        "stuck": net.turns.stopped or "",
        "does": {str(rank): net.turns.does.get(rank, "") for rank in sorted(net.turns.waiting)},
        "clues": {str(rank): clues for rank, clues in net.clues.items()},
    }


def outcome(learner: ModuleType, values: Tensor, peers: Any, timeout_s: float) -> dict[str, Any]:
    try:
        learner.all_reduce(values, peers, timeout_s)
    except learner.PeerLost as lost:
        return {"lost": int(lost.rank)}
    except (OSError, EOFError) as error:  # includes TimeoutError and ConnectionError
        return {"error": f"{type(error).__name__}: {error}"}
    except GaveUp:
        return {"gave up": True}
    return {"returned": True}
