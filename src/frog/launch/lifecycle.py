"""Deadlines of a world: when to ask its nodes to stop, when to kill them, when a lost node returns.

Two state machines without processes or clocks. They receive events with their times, and decide what to do:

    a world:  RUNNING ──> FINISHING ──> FAILING ──> STOPPING        (a world may skip any of them)
    a node:   in the world <──> lost, will return
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


class State(Enum):
    """Stages of a world between its start and the end of its last node."""

    RUNNING = 1
    FINISHING = 2
    """A node ended successfully. Nodes that wait for others that will not return are killed."""
    FAILING = 3
    """A node failed. The other nodes get time to detect it."""
    STOPPING = 4
    """All nodes were asked to stop, by the user or after a failure. They may save first."""


@dataclass(frozen=True)
class Limits:
    """Time limits."""

    grace_s: float = 45.0
    """Time from asking a world to stop until killing it: enough for a step and a checkpoint. torchrun waits 30 s."""
    rankless_grace_s: float = 5.0
    """The same for an agent without ranks, which is only looking for unreachable nodes."""
    patience_s: float = 20.0
    """Time for the other nodes to detect a failed node before they are asked to stop."""
    repair_at_most_s: float = 30.0
    """Time until a lost node returns even if the others have not continued without it."""
    up_at_most_s: float = 120.0
    """Time that an elastic world waits at its start for a slow node."""


class Lifecycle:
    """The state of a world. It only moves forward."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state = State.RUNNING
        self._since: dict[State, float] = {}

    def _enter(self, state: State, now: float) -> None:
        """Move to a later state. For an earlier state, only record the time: later states allow the same actions."""
        self._since.setdefault(state, now)
        if state.value > self.state.value:
            self.state = state

    def node_finished(self, now: float) -> None:
        """A node ended successfully."""
        self._enter(State.FINISHING, now)

    def node_failed(self, now: float) -> None:
        """A node failed, and with it the world."""
        self._enter(State.FAILING, now)

    def stop(self, now: float) -> None:
        """The user asked the world to stop."""
        self._enter(State.STOPPING, now)

    def patience_is_over(self, now: float) -> bool:
        """True, once, when a node has failed, the others have not detected it, and all must be asked to stop."""
        if self.state is not State.FAILING or now - self._since[State.FAILING] <= self.limits.patience_s:
            return False
        self._enter(State.STOPPING, now)
        return True

    def is_superfluous(self, had_ranks: bool, idle_s: Callable[[float], float]) -> bool:
        """True if a node is no longer needed: others have finished, and it has had no ranks for too long.

        It returned after the others had finished, or its network is cut and its ranks have left.
        """
        since = self._since.get(State.FINISHING)
        allowed_s = self.limits.patience_s if had_ranks else self.limits.rankless_grace_s
        return since is not None and idle_s(since) > allowed_s

    def must_be_killed(self, now: float, idle_s: Callable[[float], float]) -> bool:
        """True if the grace period of a node that was asked to stop is over."""
        since = self._since.get(State.STOPPING)
        return since is not None and (now - since > self.limits.grace_s or idle_s(since) > self.limits.rankless_grace_s)


@dataclass
class Repairs:
    """Nodes that are temporarily lost. Each node is in the world, or lost until it returns."""

    elastic: bool
    repair_s: float
    """Time that an elastic world runs without a lost node."""
    at_most_s: float
    world: set[int]
    """Nodes of the last world."""
    returns: int = 0
    """Number of temporary losses so far."""
    _begun_at: float | None = None
    _gone: dict[int, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """True if a lost node will return."""
        return bool(self._gone)

    def go(self, node: int, now: float) -> None:
        """Record that a node was lost and will return."""
        self.returns += 1
        self._gone[node] = now

    def start_world(self, nodes: set[int]) -> None:
        """Record the nodes of a new world."""
        self.world, self._begun_at = nodes, None

    def cancel(self) -> None:
        """Cancel all returns."""
        self._gone.clear()

    def pop_returning(self, now: float, has_begun: Callable[[], bool]) -> list[int]:
        """Return the nodes that return now. has_begun: True if the ranks of the last world are running."""
        gone = list(self._gone.items())  # a signal handler may cancel them meanwhile
        back = [node for node, gone_at in gone if self._is_repaired(node, gone_at, now, has_begun)]
        return [node for node in back if self._gone.pop(node, None) is not None]

    def _is_repaired(self, node: int, gone_at: float, now: float, has_begun: Callable[[], bool]) -> bool:
        """True if the node may return. An elastic world first shrinks, and runs without the node for a while."""
        if not self.elastic or now - gone_at > self.at_most_s:
            return True
        if self._begun_at is None and has_begun():
            self._begun_at = now
        if self._begun_at is None or node in self.world:
            return False
        return now - max(self._begun_at, gone_at) > self.repair_s
