"""Turn a schedule into each rank's program: when to post a receive, when to send, when to let go of a sent tensor.

Every F except the last stage's sends its output on; every B except the first stage's sends its input's gradient back.
Three rules prevent deadlocks, even if (as with NCCL) the messages between two ranks all pass through one queue:

  one order    The messages between two ranks have one order in both directions, the order in which a simulation sends
               them. Both ranks post their sends and receives in it, so the heads of the two queues always match.
  in time      A receive is posted one action before it is needed, if it is next in the order, so that the message
               travels while the rank computes; and before any send that comes later in the order.
  let go       A sent tensor is kept until a message arrives that its receiver cannot have sent without having it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from frog.train.parallel.schedules.schedule import Action, Schedule
from frog.train.parallel.schedules.simulation import simulate


@dataclass(frozen=True)
class Instruction:
    """One line of a rank's program. A message is identified by the action that produces it."""

    op: Literal["run", "receive", "send", "let_go"]
    action: Action
    peer: int | None = None
    """The other rank of a message."""

    def __str__(self) -> str:
        where = {"receive": f" from {self.peer}", "send": f" to {self.peer}"}.get(self.op, "")
        return f"{self.op} {self.action}{where}"


@dataclass(frozen=True)
class Message:
    """The result of one action that another action, on another rank, needs."""

    made_by: Action
    needed_by: Action
    source: int
    target: int


def messages(schedule: Schedule) -> list[Message]:
    """Return all messages, in the order in which a simulation with equal times sends them."""
    ends = {action: end for action, (_, end) in simulate(schedule).times.items()}
    sent = []
    for action in ends:
        needed = schedule.needs(action)
        if needed is not None and schedule.rank_of(needed.stage) != schedule.rank_of(action.stage):
            source, target = schedule.rank_of(needed.stage), schedule.rank_of(action.stage)
            sent.append(Message(needed, action, source, target))
    return sorted(sent, key=lambda message: (ends[message.made_by], message.source))


def program(schedule: Schedule, rank: int) -> list[Instruction]:
    """Return a rank's program, line by line.

    Raises:  FrogError if the schedule has a deadlock.
    """
    return list(_Writer(schedule, rank).instructions())


class _Writer:
    """Goes through a rank's actions and writes the transfers before and after each."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self._actions, self._rank = schedule.ranks[rank], rank
        self._places = {action: place for actions in schedule.ranks for place, action in enumerate(actions)}
        self._queues: dict[int, list[Message]] = defaultdict(list)
        self._arriving: dict[Action, Message] = {}
        self._leaving: dict[Action, Message] = {}
        for message in messages(schedule):
            if message.source == rank:
                self._leaving[message.made_by] = message
                self._queues[message.target].append(message)
            elif message.target == rank:
                self._arriving[message.needed_by] = message
                self._queues[message.source].append(message)
        self._kept: list[Message] = []

    def instructions(self) -> Iterator[Instruction]:
        for place, action in enumerate(self._actions):
            arriving, leaving = self._arriving.get(action), self._leaving.get(action)
            if arriving is not None:
                yield from self._up_to(arriving)
            yield from self._early(place + 1)
            yield Instruction("run", action)
            if arriving is not None:
                yield from self._let_go(arriving)
            if leaving is not None:
                yield from self._up_to(leaving)
                self._kept.append(leaving)
        yield from (Instruction("let_go", message.made_by, message.target) for message in self._kept)

    def _up_to(self, message: Message) -> Iterator[Instruction]:
        """Post everything up to a message's turn, unless that has been done."""
        queue = self._queues[message.target if message.source == self._rank else message.source]
        while message in queue:
            yield self._post(queue.pop(0))

    def _early(self, place: int) -> Iterator[Instruction]:
        """Post the receive that the next action needs, if it is next in its queue."""
        needed = self._arriving.get(self._actions[place]) if place < len(self._actions) else None
        if needed is not None and self._queues[needed.source][:1] == [needed]:
            yield self._post(self._queues[needed.source].pop(0))

    def _post(self, message: Message) -> Instruction:
        if message.source == self._rank:
            return Instruction("send", message.made_by, message.target)
        return Instruction("receive", message.made_by, message.source)

    def _let_go(self, arrived: Message) -> Iterator[Instruction]:
        """Yield an instruction to let go of each message that the sender of `arrived` had received before it."""
        made = self._places[arrived.made_by]
        taken = [m for m in self._kept if m.target == arrived.source and self._places[m.needed_by] <= made]
        self._kept = [message for message in self._kept if message not in taken]
        yield from (Instruction("let_go", message.made_by, message.target) for message in taken)
