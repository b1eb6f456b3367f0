"""What torch's recorder does not have: messages between two ranks, the roots of collectives, and DDP's `no_sync`."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator
from types import FrameType
from typing import Any

from . import frames

_METHODS = {"send": "isend", "recv": "irecv", "recv_anysource": "irecv"}
_MOST_MESSAGES, _MOST_CHANNELS = 200, 1000

Channel = tuple[str, "int | None", int, str]
"""Operation, other rank, tag and group."""


class Messages:
    """Counts the messages of the process, and remembers the last ones.

    torch's `isend` and `irecv` return at once, and the program waits later, in a method written in C. So this wraps the
    methods of torch's process groups that begin a message. A message between two ranks has the same number on both
    sides, which tells whether the other rank has begun it.
    """

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
        step.argval == "wait" and begin <= step.offset <= frame.f_lasti for step in dis.get_instructions(frame.f_code)
    )


def _world() -> Any:
    return getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)


def _global_rank(group: Any, rank: int) -> int:
    """Return a rank's number in the world from that in a group."""
    return next(int(number) for number, own in _world().pg_group_ranks[group].items() if own == rank)


# ---- the message for which a thread waits in torch's `send` or `recv` ------------------------------------------------

_PEERS = {"send": "dst", "recv": "src"}
"""The functions, and their variable with the other rank."""


def transfer_of(stack: list[FrameType]) -> dict[str, Any] | None:
    """Return the message for which a thread waits; None if it waits for none. stack: innermost first.

    Reads the variables of torch's own function, but only when evidence is asked for.
    """
    frame = _call_among(_PEERS, stack)
    if frame is None:
        return None
    try:
        return _fields(frame.f_code.co_name, frame.f_locals)
    except Exception:  # another version of torch
        return None


_ROOTS = {"broadcast": "src", "reduce": "dst", "gather": "dst", "scatter": "src"}


def root_of(stack: list[FrameType]) -> int | None:
    """Return the source or destination, a rank of the world, of the collective for which a thread waits in its call.

    None if it waits in none that has one. stack: innermost first. Lists of objects are sent by these functions too.
    """
    frame = _call_among(_ROOTS, stack)
    try:
        return None if frame is None else _peer(frame.f_locals, _ROOTS[frame.f_code.co_name])
    except Exception:  # another version of torch
        return None


def _call_among(names: Container[str], stack: list[FrameType]) -> FrameType | None:
    """Return the innermost call of one of torch.distributed's functions. stack: innermost first."""
    calls = (frame for frame in stack if frame.f_code.co_filename.endswith("distributed_c10d.py"))
    return next((frame for frame in calls if frame.f_code.co_name in names), None)


def _fields(op: str, values: dict[str, Any]) -> dict[str, Any]:
    tensor = values["tensor"]
    return {
        "op": op,
        "peer": _peer(values, _PEERS[op]),
        "tag": values.get("tag") or 0,
        "size": list(tensor.shape),
        "dtype": str(tensor.dtype).rpartition(".")[2],
    }


def _peer(values: dict[str, Any], side: str) -> int | None:
    """Return the other rank; None for a message from any rank. Functions may give its number within their group."""
    if values.get(side) is not None:
        return int(values[side])
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    members = world.pg_group_ranks[values.get("group") or world.default_pg]
    return next((rank for rank, number in members.items() if number == values.get(f"group_{side}")), None)


# ---- the group that a thread joins -----------------------------------------------------------------------------------

_JOINS = ("init_process_group", "new_group")


def joining_of(stack: list[FrameType]) -> dict[str, Any] | None:
    """Return what a thread asks for in `init_process_group` or `new_group`; None if it is in neither.

    stack: innermost first. Reads the variables of torch's own function, but only when evidence is asked for.
    """
    frame = _call_among(_JOINS, stack)
    if frame is None:
        return None
    try:
        values = frame.f_locals
        ranks = values.get("ranks")
        return {
            "op": frame.f_code.co_name,
            "world_size": _known(values.get("world_size")),
            "rank": _known(values.get("rank")),
            "ranks": None if ranks is None else [int(rank) for rank in list(ranks)[:_MOST_CHANNELS]],
            "name": _name_of_new_group(stack),
        }
    except Exception:  # another version of torch
        return None


def _name_of_new_group(stack: list[FrameType]) -> str | None:
    """Return the name that torch has given the group: its number, counted by each rank in all calls of `new_group`."""
    for frame in stack:
        if frame.f_code.co_name == "_new_group_with_tag" and "group_name" in frame.f_locals:
            return str(frame.f_locals["group_name"])
    return None


def _known(number: Any) -> int | None:
    """Return a number that the call names; None for -1, which stands for that of the environment."""
    return None if number is None or int(number) < 0 else int(number)


# ---- how often DDP's `no_sync` had no effect -------------------------------------------------------------------------


class NoSync:
    """Watches the contexts of all DDP modules of the process.

    DDP's forward decides whether a backward averages the gradients. A program that enters `no_sync` only around the
    backward gets the right numbers, but sends as much as without it.
    """

    def __init__(self) -> None:
        self._is_watching = False
        self._entered, self._without_effect = 0, 0
        self._line: dict[str, Any] | None = None

    def watch(self) -> None:
        """Wrap the method `no_sync`, once the program has imported DDP."""
        if self._is_watching:
            return
        kind: Any = getattr(sys.modules.get("torch.nn.parallel.distributed"), "DistributedDataParallel", None)
        if hasattr(kind, "no_sync"):
            self._is_watching = True
            kind.no_sync = self._watched(kind.no_sync)

    def seen(self) -> dict[str, Any] | None:
        """Return the counts for status.json; None if the program has not used `no_sync`."""
        counts = {"entered": self._entered, "without_effect": self._without_effect, "line": self._line}
        return counts if self._entered else None

    def _watched(self, no_sync: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(no_sync)
        @contextlib.contextmanager
        def watched(ddp: Any) -> Iterator[None]:
            before = _num_collectives(ddp)
            with no_sync(ddp):
                yield
            self._note(ddp, before)

        return watched

    def _note(self, ddp: Any, before: int | None) -> None:
        """Count a context. It had no effect if its collectives increased and DDP's last forward was outside."""
        self._entered += 1
        if getattr(ddp, "require_forward_param_sync", False) and _num_collectives(ddp) != before:
            self._without_effect += 1
            self._line = self._line or frames.user_line(frames.stack_of(sys._getframe(1)))


def _num_collectives(ddp: Any) -> int | None:
    """Return how many collectives the process group of a module has called; None if its backend does not count."""
    try:
        return int(ddp.process_group._get_sequence_number_for_group())
    except Exception:
        return None
