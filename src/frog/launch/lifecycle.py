"""What time decides in a world: when its nodes are asked to leave, when they are made to, when one comes back.

Two state machines without processes or clocks, which hear what happens and when, and answer what is to be done:

    a world:  RUNNING ──> FINISHING ──> FAILING ──> STOPPING        (any of them may be left out)
    a node:   in the world <──> gone, to come back
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


class State(Enum):
    """Where a world is between its start and the end of its last node."""

    RUNNING = 1
    FINISHING = 2
    """A node has ended as it should. Those that wait for nodes which will not come again are done without."""
    FAILING = 3
    """A node has failed. The others are given time to notice by themselves."""
    STOPPING = 4
    """All have been asked to leave, by the user or since a node has failed. They may save first."""


@dataclass(frozen=True)
class Limits:
    """How long things may take."""

    grace_s: float = 45.0
    """From asking a world to stop to killing it: time for a step and a checkpoint. torchrun itself waits 30 s."""
    last_words_s: float = 5.0
    """The same for an agent that has no ranks any more: it looks for nodes that it cannot reach."""
    patience_s: float = 60.0
    """How long the other nodes may take to notice that one has failed, before they are asked to stop."""
    repair_at_most_s: float = 30.0
    """A node that has gone comes back after so long, also if the others have not gone on without it."""
    up_at_most_s: float = 120.0
    """How long a world that can shrink waits, at its start, for a node that is slow to come up."""


class Lifecycle:
    """The state of a world. It only goes forward."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state = State.RUNNING
        self._since: dict[State, float] = {}

    def _enter(self, state: State, now: float) -> None:
        """Go on to a later state. Of an earlier one only the time is noted: what it allows is allowed later too."""
        self._since.setdefault(state, now)
        if state.value > self.state.value:
            self.state = state

    def node_finished(self, now: float) -> None:
        """A node has ended as it should."""
        self._enter(State.FINISHING, now)

    def node_failed(self, now: float) -> None:
        """A node has failed, and the world with it."""
        self._enter(State.FAILING, now)

    def stop(self, now: float) -> None:
        """The user wants it to stop."""
        self._enter(State.STOPPING, now)

    def loses_patience(self, now: float) -> bool:
        """Whether it is now that all must be asked to leave, since one has failed and they have not noticed."""
        if self.state is not State.FAILING or now - self._since[State.FAILING] <= self.limits.patience_s:
            return False
        self._enter(State.STOPPING, now)
        return True

    def can_do_without(self, had_ranks: bool, idle_s: Callable[[float], float]) -> bool:
        """Whether a node has nothing more to do: others have finished, and it is without ranks for long.

        It came back when the others had already finished, or its network is cut and its ranks have left.
        """
        since = self._since.get(State.FINISHING)
        allowed_s = self.limits.patience_s if had_ranks else self.limits.last_words_s
        return since is not None and idle_s(since) > allowed_s

    def must_go(self, now: float, idle_s: Callable[[float], float]) -> bool:
        """Whether a node that was asked to leave has had its time."""
        since = self._since.get(State.STOPPING)
        return since is not None and (now - since > self.limits.grace_s or idle_s(since) > self.limits.last_words_s)


@dataclass
class Repairs:
    """Nodes that have gone for a while. Each is in the world, or gone since some time and then back."""

    elastic: bool
    repair_s: float
    """How long a world that can shrink works without a node that has gone."""
    at_most_s: float
    world: set[int]
    """The nodes of the last world."""
    returns: int = 0
    """How often a node has gone to come back."""
    _begun_at: float | None = None
    _gone: dict[int, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether a node is awaited."""
        return bool(self._gone)

    def go(self, node: int, now: float) -> None:
        """A node has gone, and comes back."""
        self.returns += 1
        self._gone[node] = now

    def start_world(self, nodes: set[int]) -> None:
        """These are together from now on."""
        self.world, self._begun_at = nodes, None

    def cancel(self) -> None:
        """Nobody comes back."""
        self._gone.clear()

    def take_back(self, now: float, has_begun: Callable[[], bool]) -> list[int]:
        """The nodes that come back now. `has_begun`: whether the ranks of the last world are at work."""
        gone = list(self._gone.items())  # a signal may cancel them meanwhile
        back = [node for node, gone_at in gone if self._is_repaired(node, gone_at, now, has_begun)]
        return [node for node in back if self._gone.pop(node, None) is not None]

    def _is_repaired(self, node: int, gone_at: float, now: float, has_begun: Callable[[], bool]) -> bool:
        """A world that can shrink first does so, and works for a while without the node."""
        if not self.elastic or now - gone_at > self.at_most_s:
            return True
        if self._begun_at is None and has_begun():
            self._begun_at = now
        if self._begun_at is None or node in self.world:
            return False
        return now - max(self._begun_at, gone_at) > self.repair_s
