"""Messages between the ranks of a program that is planned: pipelines, and whatever else calls `send` and `recv`.

The ranks that exchange messages run at once, each in a process of its own. A message has no content, except that the
values of small tensors with known values and Python's objects arrive: programs send the shapes of what follows. A batch
of messages is one row, since NCCL runs it as one kernel on the stream of a communicator:

    ["messages", line, pass, key, communicator, [["send" or "recv", bytes, peer, name], ...]]

`name` is the same on both sides. The program waits for it by ["wait", key].
"""

from __future__ import annotations

import itertools
import os
import pickle
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from frog.plan.program.known_values_rank import forget_value, keep_value, value_of
from frog.plan.program.recording_rank import CannotFake, Complete, Recorder, ranks_of, size_of

_POLL_S = 0.005
_MOST_VALUES = 2**16
"""Elements of a tensor whose value is sent."""


class PostOffice:
    """The folder through which the processes of a planned program exchange messages.

    `message-NAME` is a message, `wanted-RANK` asks for the process of a rank, `waits-RANK` says for which message a
    process waits, and `ended-RANK` that it sends nothing more. `arrived-RANK-NAME` has the planned time at which a rank
    is ready for a message.
    """

    def __init__(self, folder: Path, rank: int, recorder: Recorder) -> None:
        self.folder, self.rank, self.recorder = folder, rank, recorder
        self._known = {rank}

    def want(self, peer: int) -> None:
        """Ask for the process of a peer."""
        if peer not in self._known:
            self._known.add(peer)
            self._write(f"wanted-{peer}", b"")

    def put(self, name: str, content: Any) -> None:
        """Send a message."""
        self._write(f"message-{name}", pickle.dumps(content))

    def take(self, name: str, peer: int, line: int) -> Any:
        """Wait for a message and return it.

        Raises:  Complete if the planned steps are complete and the peer has ended; CannotFake if only the peer has.
        """
        path = self.folder / f"message-{name}"
        if not path.exists():
            self._wait(path, peer, self.recorder.lines[line])
        content = pickle.loads(path.read_bytes())
        path.unlink()
        return content

    def arrive(self, name: str, rank: int, at: float) -> None:
        """Say when a rank is ready for a message."""
        self._write(f"arrived-{rank}-{name}", pickle.dumps(at))

    def ready(self, name: str, line: int) -> float:
        """Wait until both sides of a message have said when they are ready for it, and return the later time.

        Raises:  as take.
        """
        paths = {int(rank): self.folder / f"arrived-{rank}-{name}" for rank in name.split("-")[1:3]}
        for rank, path in paths.items():
            if not path.exists():
                self._wait(path, rank, self.recorder.lines[line])
        return max(float(pickle.loads(path.read_bytes())) for path in paths.values())

    def _wait(self, path: Path, peer: int, line: str) -> None:
        """Wait for a file. The starting process ends this one if all processes wait."""
        waits = f"waits-{self.rank}"
        text = f"{line}: rank {self.rank} waits for a message of rank {peer}"
        self._write(waits, pickle.dumps((path.name, text, self.recorder.is_complete)))
        while not path.exists():
            if (self.folder / f"ended-{peer}").exists() and not path.exists():
                if self.recorder.is_complete:
                    raise Complete  # the peer has begun another step, or has no more
                raise CannotFake(f"{line}: rank {peer} ended its steps without a message to rank {self.rank}")
            time.sleep(_POLL_S)
        (self.folder / waits).unlink()

    def end(self) -> None:
        """Say that this process sends nothing more."""
        self._write(f"ended-{self.rank}", b"")

    def _write(self, name: str, content: bytes) -> None:
        staging = self.folder / f".{self.rank}"
        staging.write_bytes(content)
        os.replace(staging, self.folder / name)


class Work:
    """What `isend`, `irecv` and a batch of them return."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the messages."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Return True after waiting: a program that asks until all is complete would ask forever."""
        return self.wait()

    def synchronize(self) -> None:
        """Wait for the messages."""
        self.wait()


class Messages:
    """`send`, `recv` and their relatives of torch.distributed."""

    def __init__(self, recorder: Recorder, office: PostOffice, catch_up: Callable[[], None]) -> None:
        """catch_up: plays the recorded rows, so that the peers of a message learn when this rank is ready for it."""
        self.recorder, self.office, self.rank, self.catch_up = recorder, office, office.rank, catch_up
        self._keys = itertools.count()
        self._numbers: Counter[str] = Counter()

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by their names in torch.distributed."""
        names = ("isend", "irecv", "send", "recv", "batch_isend_irecv", "send_object_list", "recv_object_list")
        return {name: getattr(self, name) for name in names}

    def isend(
        self, tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
    ) -> Work:
        """Start to send a tensor."""
        return self._start([("send", tensor, self._peer(dst, group_dst, group), group)])

    def irecv(
        self, tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
    ) -> Work:
        """Start to receive a tensor."""
        return self._start([("recv", tensor, self._peer(src, group_src, group), group)])

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Send a tensor."""
        self.isend(*args, **kwargs).wait()

    def recv(self, tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, **kwargs: Any) -> int:
        """Receive a tensor and return the sender's rank."""
        self.irecv(tensor, src, group, tag, **kwargs).wait()
        return self._peer(src, kwargs.get("group_src"), group)

    def batch_isend_irecv(self, p2p_op_list: list[Any]) -> list[Work]:
        """Start a batch of messages."""
        kinds = {"isend": "send", "irecv": "recv"}
        return [self._start([(kinds[op.op.__name__], op.tensor, op.peer, op.group) for op in p2p_op_list], True)]

    def send_object_list(
        self, object_list: list[Any], dst: int | None = None, group: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """Send Python's objects, which takes no time."""
        peer = self._peer(dst, kwargs.get("group_dst"), group)
        self.office.put(self._name("object", self.rank, peer, group), object_list)

    def recv_object_list(
        self, object_list: list[Any], src: int | None = None, group: Any = None, *args: Any, **kwargs: Any
    ) -> int:
        """Receive Python's objects, which takes no time; return the sender's rank."""
        peer = self._peer(src, kwargs.get("group_src"), group)
        name = self._name("object", peer, self.rank, group)
        object_list[:] = self.office.take(name, peer, self.recorder.line())
        return peer

    def _start(self, messages: list[tuple[str, Any, int, Any]], is_batch: bool = False) -> Work:
        """Record messages that start together, and send what is known of those that leave."""
        line = self.recorder.line()
        key = f"messages {next(self._keys)}"
        where = self.recorder.lines[line]
        rows: list[list[Any]] = []
        received: list[tuple[Any, int, str]] = []
        for kind, tensor, peer, group in messages:
            self.office.want(peer)
            ends = (self.rank, peer) if kind == "send" else (peer, self.rank)
            name = self._name("tensor", *ends, group)
            local = getattr(tensor, "_local_tensor", tensor)
            rows.append([kind, size_of(local), peer, name])
            if kind == "send":
                self.office.put(name, (tuple(local.shape), str(local.dtype), _known_bytes(local), where))
            else:
                received.append((local, peer, name))
        group, peers = messages[0][3], sorted({message[2] for message in messages})
        communicator = f"group {_group_name(group)}" if is_batch else f"pair {peers[0]}"
        self.recorder.rows.append(["messages", line, self.recorder.which_pass(), key, communicator, rows])
        self.catch_up()

        def finish() -> None:
            for tensor, peer, name in received:
                _arrive(tensor, self.office.take(name, peer, line), where, self.rank, peer)
            self.recorder.rows.append(["wait", key])

        return Work(finish)

    def _peer(self, rank: int | None, group_rank: int | None, group: Any) -> int:
        """Return the rank of a peer in the world.

        Raises:  CannotFake for a message from any rank.
        """
        if rank is not None:
            return rank
        if group_rank is None:
            line = self.recorder.lines[self.recorder.line()]
            raise CannotFake(f"{line}: a message from any rank; a plan has to know which one sends it")
        return ranks_of(group)[group_rank]

    def _name(self, what: str, source: int, target: int, group: Any) -> str:
        """Return the name of the next message from one rank to another in a group."""
        channel = f"{what}-{source}-{target}-{_group_name(group)}"
        self._numbers[channel] += 1
        return f"{channel}-{self._numbers[channel]}"


def _group_name(group: Any) -> str:
    """Return a short name of a group that is the same on all of its ranks."""
    return f"{zlib.crc32(str(ranks_of(group)).encode()):08x}"


def _known_bytes(tensor: Any) -> bytes | None:
    """Return the values of a tensor as bytes, or None if they are not known or too many."""
    value = value_of(tensor)
    if value is None or value.numel() > _MOST_VALUES:
        return None
    with _disable_current_modes():
        return bytes(value.detach().reshape(-1).contiguous().view(torch.uint8).numpy())


def _arrive(tensor: Any, message: tuple[Any, ...], line: str, rank: int, peer: int) -> None:
    """Keep the value of a received tensor, if it is known.

    Raises:  CannotFake if the sent tensor has another size or type.
    """
    shape, dtype, known, sent_at = message
    if torch.Size(shape).numel() != tensor.numel() or dtype != str(tensor.dtype):
        raise CannotFake(
            f"{line}: rank {rank} receives {list(tensor.shape)} of {tensor.dtype}, "
            f"but rank {peer} sends {list(shape)} of {dtype} at {sent_at}"
        )
    with _disable_current_modes():
        if known:
            value = torch.frombuffer(bytearray(known), dtype=tensor.dtype).reshape(tensor.shape)
            if isinstance(tensor, FakeTensor):
                keep_value(tensor, value)
            else:
                tensor.copy_(value)
        elif isinstance(tensor, FakeTensor):
            forget_value(tensor)
