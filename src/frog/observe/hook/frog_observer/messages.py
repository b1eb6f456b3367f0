"""The messages between two ranks that a process has begun: torch's recorder for gloo has none of them.

torch's `isend` and `irecv` return at once, and the program waits later, in a method written in C. So this wraps the
methods of torch's process groups that begin a message. A message between two ranks has the same number on both sides,
which tells whether the other rank has begun it.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import frames

_METHODS = {"send": "isend", "recv": "irecv", "recv_anysource": "irecv"}
_MOST_MESSAGES, _MOST_CHANNELS = 200, 1000

Channel = tuple[str, "int | None", int, str]
"""Operation, other rank, tag and group."""


class Messages:
    """Counts the messages of the process, and remembers the last ones."""

    def __init__(self) -> None:
        self._is_watching, self._is_whole = False, False
        self._counts: dict[Channel, int] = {}
        self._last: deque[tuple[dict[str, Any], weakref.ref[Any]]] = deque(maxlen=_MOST_MESSAGES)

    def watch(self) -> None:
        """Wrap torch's methods, once the program has imported them. No message precedes its first group."""
        kind: Any = getattr(sys.modules.get("torch._C._distributed_c10d"), "ProcessGroup", None)
        if self._is_watching or not hasattr(kind, "recv_anysource"):
            return
        self._is_watching = True
        for name, op in _METHODS.items():
            setattr(kind, name, self._watched(op, getattr(kind, name)))
        self._is_whole = not getattr(_world(), "pg_names", None)

    def are_awaited(self, stack: list[FrameType]) -> bool:
        """True if a thread waits for a message that the process has begun. stack: innermost first."""
        return bool(stack) and calls_wait(stack[0]) and any(not message["done"] for message in self._messages())

    def seen(self) -> dict[str, Any]:
        """Return the part of collectives.json about messages."""
        counts = [[*channel, number] for channel, number in list(self._counts.items())]
        return {"whole": self._is_whole, "counts": counts, "last": self._messages()}

    def _messages(self) -> list[dict[str, Any]]:
        """Return the last messages; those that the program has dropped, or waited for with any result, are done."""
        works = [(message, work()) for message, work in list(self._last)]
        return [{**message, "done": work is None or work.is_completed()} for message, work in works]

    def _watched(self, op: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def watched(group: Any, *args: Any, **kwargs: Any) -> Any:
            work = method(group, *args, **kwargs)
            try:
                self._note(op, group, args, work)
            except Exception:  # another version of torch, or a call of another form
                self._is_whole = False
            return work

        return watched

    def _note(self, op: str, group: Any, args: tuple[Any, ...], work: Any) -> None:
        tensors, *peer, tag = args
        other, name = _global_rank(group, peer[0]) if peer else None, str(group.group_name)
        channel = (op, other, int(tag), name)
        number = self._counts.pop(channel, 0) + 1
        self._counts[channel] = number  # the last one: the channels used least recently are dropped
        if len(self._counts) > _MOST_CHANNELS:
            del self._counts[next(iter(self._counts))]
        message = {
            "op": op,
            "peer": other,
            "tag": int(tag),
            "group": name,
            "number": number,
            "size": list(tensors[0].shape),
            "dtype": str(tensors[0].dtype).rpartition(".")[2],
            "line": frames.user_line(frames.stack_of(sys._getframe(2))),
        }
        self._last.append((message, weakref.ref(work)))


def calls_wait(frame: FrameType) -> bool:
    """True if a frame is in a line that calls a method `wait`; if no Python frame is inside, one written in C."""
    if "wait" not in frame.f_code.co_names:
        return False
    import dis

    starts = [offset for offset, _ in dis.findlinestarts(frame.f_code)]
    begin = max((offset for offset in starts if offset <= frame.f_lasti), default=0)
    return any(
        one.argval == "wait" and begin <= one.offset <= frame.f_lasti for one in dis.get_instructions(frame.f_code)
    )


def _world() -> Any:
    return getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)


def _global_rank(group: Any, rank: int) -> int:
    """Return a rank's number in the world from that in a group."""
    return next(int(number) for number, own in _world().pg_group_ranks[group].items() if own == rank)
