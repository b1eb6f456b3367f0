"""What a cell world and its ranks say to each other: JSON over a Unix socket, one message at a time.

world ── Request ──> rank        run a cell, make the process group again, save and load variables, ...
world <── Answer ─── rank        one for each request that asks for one, with its number
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Literal

import msgspec

from frog.core.schema import Typed


class Request(Typed, frozen=True, kw_only=True):
    """What a rank shall do."""

    act: Literal["run", "regroup", "save", "load", "get", "interrupt", "abort", "exit"]
    """interrupt, abort and exit have no answer."""
    number: int = 0
    """The answer has the same number."""
    path: str = ""
    """run: the cell's file; save, load, get: the file to write or read."""
    name: str = ""
    """get: an expression."""
    store: bool = False
    """abort: also the connections to the store of the rendezvous."""
    at_once: bool = False
    """save: even if a cell runs."""
    code: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """load: definitions, each with the file of its cell."""


class Call(Typed, frozen=True, kw_only=True):
    """A collective or a message of one rank, in one cell."""

    op: str
    group: str = "0"
    seq: int = 0
    """Number within its group; of a message: among those of its operation."""
    p2p: bool = False
    payload_bytes: int = 0
    shape: str = ""
    start_ns: int
    """When the rank entered it, in nanoseconds of Unix time."""
    end_ns: int | None = None
    """When the call returned or failed; None if unknown, as inside a backward pass."""
    line: str = ""
    """Where the cell called it, as `cell 3, line 2`."""
    done: bool = True
    """False if the call failed, as when its cell was ended."""
    peer: int | None = None
    blocks: bool = False
    """True if the rank did nothing else until the call returned; False if unknown, as inside a backward pass."""
    members: list[int] = msgspec.field(default_factory=list)


class TensorFacts(Typed, frozen=True, kw_only=True):
    """A tensor, or the parameters of a module, in the value of a cell."""

    place: str
    """Where in the value: "" for the value itself, `[0]`, `weight`."""
    digest: str | None
    """Equal if and only if shape, dtype and all bytes are; None if they were not compared."""


class CellError(Typed, frozen=True, kw_only=True):
    """An exception that ended a cell."""

    type: str
    message: str = ""
    lines: list[str] = msgspec.field(default_factory=list)
    """The cells' own lines of its traceback, outermost first."""
    is_interrupt: bool = False


class Answer(Typed, frozen=True, kw_only=True):
    """What a rank has done."""

    number: int
    rank: int
    pid: int = 0
    value: str | None = None
    """run: the value of the last expression, described; None without one."""
    tensors: list[TensorFacts] = msgspec.field(default_factory=list)
    error: CellError | None = None
    calls: list[Call] = msgspec.field(default_factory=list)
    names: list[str] = msgspec.field(default_factory=list)
    """run: names of the variables that the rank holds now."""
    lost: list[str] = msgspec.field(default_factory=list)
    """save, load: variables that cannot be kept, each with the reason."""
    code: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """save: the definitions of its cells, each with the file of its cell."""
    in_group: bool = True
    """False if the rank is in no process group."""
    duration_s: float = 0.0
    device: str = ""


def send(connection: Connection, message: Request | Answer) -> None:
    """Send a message. Raises OSError if the other end is gone."""
    connection.send_bytes(msgspec.json.encode(message))


def receive_request(connection: Connection) -> Request:
    """Return the next request. Raises EOFError or OSError if the world is gone."""
    return msgspec.json.decode(connection.recv_bytes(), type=Request)


def receive_answer(connection: Connection) -> Answer:
    """Return the next answer. Raises EOFError or OSError if the rank is gone."""
    return msgspec.json.decode(connection.recv_bytes(), type=Answer)
