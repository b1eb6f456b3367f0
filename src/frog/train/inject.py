"""Faults met by a rank: what `frog.config.faults` describes is brought about here, for real, in this very process.

A fault is met once in a launch, also if its world starts again: a mark next to the list of faults says so. Nothing
of it is written to the run folder, whose reader must find out by evidence what went wrong.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import re
import signal
import socket
import stat
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from frog.checkpoint import Saver
from frog.collectives.connection import Connection
from frog.collectives.group import OPERATIONS
from frog.collectives.shared_memory import COUNTERS
from frog.collectives.waiting import Waiter
from frog.comm.axis import NOTHING, Axis, Pending
from frog.config.fault_kinds import FULL_DEVICE, KINDS, Kind
from frog.config.faults import Fault, load_faults, marks_folder
from frog.core.env import faults_file, host_name, launch_dir
from frog.core.errors import CheckpointError, UsageError
from frog.core.launch_request import LaunchRequest
from frog.core.manifest import part_file
from frog.core.schema import write_typed
from frog.core.vocabulary import Phase
from frog.parallel.strategy import Strategy
from frog.train.setup import Run

_POLL_S = 0.005

_SIGNS_OF_LIFE = ((Connection, "_send_some"), (Connection, "_receive_some"), (Waiter, "say"))
"""All by which a rank's peers in our own collectives see that it goes on."""

_ROOM = "frog.collectives."

_REQUEST_S = 60.0
"""How long the launcher may take to do what it was asked for."""


def arm_faults(run: Run, strategy: Strategy, saver: Saver) -> None:
    """Let this rank meet the faults that FROG_FAULTS lists for it. Without that, nothing is done, and nothing costs."""
    path = faults_file()
    if path is None:
        return
    faults = {number: fault for number, fault in enumerate(load_faults(path)) if fault.rank == run.identity}
    injector = _Injector(faults, marks_folder(path), run, strategy)
    run.events.at_phase = injector.reach
    kinds = [KINDS[fault.kind] for fault in faults.values()]
    if any(kind.alters_collective for kind in kinds):
        Axis.alter = injector.alter
    if any(kind.checkpoint for kind in kinds):
        saver.save = injector.then_damage(saver.save)  # type: ignore[method-assign]


class _Injector:
    """This rank's faults, and which of them are under way."""

    def __init__(self, faults: dict[int, Fault], marks: Path, run: Run, strategy: Strategy) -> None:
        self._faults, self._marks, self._run, self._strategy = faults, marks, run, strategy
        self._armed: tuple[int, Fault] | None = None
        """Waits for a collective, or for the checkpoint, of this phase."""
        self._slow: set[int] = set()
        self._marks.mkdir(exist_ok=True)

    def reach(self, step: int, phase: Phase, micro: int) -> None:
        """A phase begins on this rank."""
        self._armed = None
        for number, fault in self._faults.items():
            if number in self._slow and fault.phase == phase:
                time.sleep(fault.seconds)
            elif (fault.step, fault.phase, fault.micro) == (step, phase, micro):
                _ACTS[fault.kind](self, number, fault)

    def _take(self, number: int, fault: Fault, where: str = "") -> bool:
        """Whether this fault is still to be met; from now on it was, once more, and its mark says where."""
        for time_ in range(fault.times):
            try:
                with (self._marks / f"{number}.{time_}").open("x") as mark:
                    mark.write(where)
            except FileExistsError:
                continue
            return True
        return False

    def _arm(self, number: int, fault: Fault) -> None:
        """Met by the next collective of the phase, or by its checkpoint."""
        self._armed = (number, fault)

    # ---- the process -------------------------------------------------------------------------------------------------

    def _raise(self, number: int, fault: Fault) -> None:
        raise RuntimeError("this was not foreseen by the program")

    def _kill(self, number: int, fault: Fault) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _kill_midway(self, number: int, fault: Fault) -> None:
        die_after(fault.signs, lambda where: self._take(number, fault, where), fault.sent_bytes)

    def _stop(self, number: int, fault: Fault) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _become_slow(self, number: int, fault: Fault) -> None:
        self._slow.add(number)
        time.sleep(fault.seconds)

    # ---- numbers and collectives -------------------------------------------------------------------------------------

    def _spoil(self, number: int, fault: Fault) -> None:
        if fault.phase == "backward":
            self._spoil_in_backward(number, fault)
        elif self._take(number, fault):
            gradients = [shard.tensor for shard in self._strategy.gradient_shards() if shard.tensor.numel()]
            gradients[-1].copy_(_with_nan(gradients[-1]))

    def _spoil_in_backward(self, number: int, fault: Fault) -> None:
        """Let the gradient of one parameter hold a NaN as it comes."""
        parameter = next(p for p in self._strategy.model.parameters() if p.requires_grad)

        def spoil(grad: Tensor) -> Tensor | None:
            handle.remove()
            return _with_nan(grad) if self._take(number, fault) else None

        handle = parameter.register_hook(spoil)  # type: ignore[no-untyped-call]

    def _extra(self, number: int, fault: Fault) -> None:
        self._run.world.axis.all_reduce(torch.zeros(1, device=self._run.world.device))

    def alter(self, start: Callable[..., Pending], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pending:
        """In place of a collective: nothing, or one with tensors of another size, if that is this rank's fault now."""
        axis = args[0]
        if self._armed is None or axis.size == 1 or not self._take(*self._armed):
            return start(*args, **kwargs)
        kind, self._armed = KINDS[self._armed[1].kind], None
        if kind.collective == "left_out":
            return NOTHING
        return start(axis, *_mismatched(args[1:], axis.size), **kwargs)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def then_damage(self, save: Callable[..., int]) -> Callable[..., int]:
        """`save`, and after it, if this rank is to, the damage; a killed rank reports nothing."""

        def save_and_damage(step: int, *args: Any) -> int:
            before = _inode(self._run.folder.checkpoint(step))
            blocked_ns = save(step, *args)
            if self._armed is not None and self._take(*self._armed):
                self._damage(step, KINDS[self._armed[1].kind], before)
            return blocked_ns

        return save_and_damage

    def _damage(self, step: int, kind: Kind, before: int | None) -> None:
        """Once the checkpoint is whole, spoil this rank's part of it, and end as if the power were lost.

        `before` is the folder that was there of an earlier attempt: the new one takes its place.
        """
        folder, deadline = self._run.folder.checkpoint(step), time.monotonic() + self._run.config.train.timeout_s
        while _inode(folder) in (None, before):
            if time.monotonic() > deadline:
                raise CheckpointError(f"{folder}: not there, so it cannot be damaged")
            time.sleep(_POLL_S)
        path = folder / part_file(self._run.world.rank)
        size = path.stat().st_size
        if kind.checkpoint == "halved":
            os.truncate(path, size // 2)
        else:
            with open(path, "r+b") as file:
                file.seek(size - 1)
                last = file.read(1)[0]
                file.seek(size - 1)
                file.write(bytes([last ^ 1]))
        os.kill(os.getpid(), signal.SIGKILL)

    def _fill_disk(self, number: int, fault: Fault) -> None:
        """Put this rank's part of the coming checkpoint on the device that is always full: writing there is ENOSPC."""
        staging = self._run.folder.staged_checkpoint(fault.step, self._run.attempt)
        staging.mkdir(parents=True, exist_ok=True)
        part = staging / part_file(self._run.world.rank)
        part.symlink_to(FULL_DEVICE)
        atexit.register(part.unlink, missing_ok=True)

    # ---- network and nodes -------------------------------------------------------------------------------------------

    def _close_sockets(self, number: int, fault: Fault) -> None:
        """Shut every network connection of this process down, under the feet of who uses them."""
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):  # closed by another thread just now, or listening: not connected
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    with socket.socket(fileno=os.dup(int(name))) as twin:
                        if twin.family in (socket.AF_INET, socket.AF_INET6) and twin.getpeername():
                            twin.shutdown(socket.SHUT_RDWR)

    def _lose_node(self, number: int, fault: Fault) -> None:
        self._request("kill_node", number)

    def _cut_node(self, number: int, fault: Fault) -> None:
        if fault.after_s:
            self._request_later(fault.after_s, "cut", number)
        else:
            self._request("cut", number)
        if fault.for_s is not None:
            self._request_later(fault.after_s + fault.for_s, "heal", number)

    def _request_later(self, seconds: float, act: str, number: int) -> None:
        timer = threading.Timer(seconds, self._request, (act, number))
        timer.daemon = True
        timer.start()

    def _request(self, act: Literal["kill_node", "cut", "heal"], number: int) -> None:
        """Ask the launcher for what a rank cannot bring about alone; return when it is done."""
        launch = launch_dir()
        if launch is None:
            raise UsageError(
                f"no launcher here that could {act.replace('_', ' a ')}", "start the world with frog chaos"
            )
        path = launch / "requests" / f"{act}_{number}_{os.getpid()}.json"
        write_typed(path, LaunchRequest(act=act, node=self._node()))
        deadline = time.monotonic() + _REQUEST_S
        while not path.with_suffix(".done").exists():
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the launcher has not answered the request to {act} within {_REQUEST_S:g} s",
                    "was it started by frog run?",
                )
            time.sleep(_POLL_S)

    def _node(self) -> int:
        """The pretended machine this rank runs on; its number in the world may differ after that has shrunk."""
        match = re.fullmatch(r"node(\d+)", host_name())
        return int(match[1]) if match else self._run.world.env.node_rank


_Act = Callable[[_Injector, int, Fault], None]


def _at_once(act: _Act) -> _Act:
    """Do it as the phase begins, unless it was met before."""

    def act_once(injector: _Injector, number: int, fault: Fault) -> None:
        if injector._take(number, fault):
            act(injector, number, fault)

    return act_once


_ACTS: dict[str, _Act] = {
    "raise": _at_once(_Injector._raise),
    "kill": _at_once(_Injector._kill),
    "midway": _Injector._kill_midway,
    "stop": _at_once(_Injector._stop),
    "slow": _at_once(_Injector._become_slow),
    "shape": _Injector._arm,
    "extra": _at_once(_Injector._extra),
    "missing": _Injector._arm,
    "nan": _Injector._spoil,
    "corrupt": _Injector._arm,
    "torn": _Injector._arm,
    "disk": _at_once(_Injector._fill_disk),
    "port": _at_once(_Injector._close_sockets),
    "node": _at_once(_Injector._lose_node),
    "cut": _at_once(_Injector._cut_node),
}
"""What each kind of fault does as its phase begins."""


def die_after(signs: int, wanted: Callable[[str], bool], sent_bytes: int | None = None) -> None:
    """Let this process be killed as it gives a sign of life more than these in our own collectives, if it is wanted.

    wanted: is told where that is.
    sent_bytes: it is the next message from then on, of which so much goes out; None: whatever comes.
    """
    left, due = itertools.count(signs, -1), True

    def mortal(name: str, speak: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any) -> Any:
            nonlocal due
            if due and next(left) <= 0 and (sent_bytes is None or name == "_send_some"):
                due = False
                if wanted(f"{_under_way()}, {_last_words(name, args, sent_bytes or 0)}"):
                    if sent_bytes is not None:
                        _send_part(args[0], sent_bytes)
                    os.kill(os.getpid(), signal.SIGKILL)
            return speak(*args)

        return act

    for owner, name in _SIGNS_OF_LIFE:
        setattr(owner, name, mortal(name, getattr(owner, name)))


def _under_way() -> str:
    """What this process does in our own collectives just now: found on its stack, where every caller's name stands."""
    frames = [frame for frame, _ in traceback.walk_stack(None) if frame.f_globals["__name__"].startswith(_ROOM)]
    names = [frame.f_code.co_name for frame in reversed(frames)]
    collective = next((name for name in names if name in OPERATIONS), None)
    if "_regroup" in names:
        return f"in the agreement that ends {collective or 'nothing'}"
    if "join_survivors" in names or "_share" in names:
        return "on its way in"
    if collective is None:
        return "between two collectives"
    return (
        f"in the barrier behind {collective}"
        if "barrier" in names[names.index(collective) + 1 :]
        else f"in {collective}"
    )


def _last_words(name: str, args: Sequence[Any], sent_bytes: int) -> str:
    """Which sign of life it does not give, or not whole."""
    if name == "_send_some":
        whole = sum(map(len, args[0].outgoing[0].parts))
        return f"with {min(sent_bytes, whole)} of {whole} bytes of a message sent"
    return "before it received" if name == "_receive_some" else f"before it said {COUNTERS[args[1]]} {args[2]}"


def _send_part(connection: Connection, num_bytes: int) -> None:
    with contextlib.suppress(OSError):
        connection.socket.send(b"".join(connection.outgoing[0].parts)[:num_bytes])


def _inode(folder: Path) -> int | None:
    """Which folder has that name; None if there is none."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return None


def _with_nan(grad: Tensor) -> Tensor:
    """A copy whose first element is NaN."""
    spoiled = grad.detach().clone()
    spoiled.view(-1)[0] = math.nan
    return spoiled


def _mismatched(args: Sequence[Any], num_ranks: int) -> list[Any]:
    """A collective's arguments with tensors of another size. A shift has lists of them, one as good as the other."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if tensors:
        return [*_resized(tensors, num_ranks), *args[len(tensors) :]]
    return [[_resized([x], num_ranks)[0] for x in arg] if isinstance(arg, Sequence) else arg for arg in args]


def _resized(tensors: Sequence[Tensor], num_ranks: int) -> list[Tensor]:
    """Copies of half the size (double, if there is nothing to halve), which among themselves still fit.

    Shapes:  a single tensor, or a pair of which the larger is a multiple of the smaller, or both slices for each rank
    """
    sizes = [tensor.numel() for tensor in tensors]
    unit = min(sizes)
    if len(sizes) == 2 and sizes[0] == sizes[1]:
        unit //= num_ranks
    keep = unit // 2 or 2 * unit
    return [_first(tensor.reshape(-1), tensor.numel() // unit * keep) for tensor in tensors]


def _first(flat: Tensor, count: int) -> Tensor:
    return flat[:count].clone() if count <= len(flat) else torch.cat([flat, flat])[:count]
