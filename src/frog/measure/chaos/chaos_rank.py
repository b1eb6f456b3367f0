"""Fault injection inside a rank: an observer that does in the rank's process what `frog.core.config.faults` describes.

FROG_OBSERVER=frog.measure.chaos.chaos_rank:FILE adds it to every rank of a launch (core/runs/observer.py). A fault
occurs once per launch, even if the world restarts: a mark next to the list of faults records it. Nothing is written
to the run folder, so that its reader has to find the cause from the evidence.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import re
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from frog.core.config.fault_kinds import FULL_DEVICE, KINDS
from frog.core.config.faults import Fault, load_faults, marks_folder
from frog.core.env import host_name, launch_dir
from frog.core.errors import CheckpointError, UsageError
from frog.core.runs.launch_request import LaunchRequest
from frog.core.runs.manifest import part_file
from frog.core.runs.vocabulary import Phase
from frog.core.schema import write_typed
from frog.measure.chaos.collective_kills import CollectiveKills
from frog.train.parallel.strategy import Strategy
from frog.train.setup import Run

_POLL_S = 0.005

_REQUEST_S = 60.0
"""How long the launcher may take to fulfil a request."""


def observe(path: str) -> Injector:
    """Return the observer that injects this rank's faults from that file."""
    return Injector(load_faults(Path(path)), marks_folder(Path(path)))


class Injector(CollectiveKills):
    """This rank's faults, and the ones in progress."""

    def __init__(self, faults: Sequence[Fault], marks: Path) -> None:
        """faults: the faults of all ranks."""
        super().__init__()
        self._all, self._marks = dict(enumerate(faults)), marks
        self._faults: dict[int, Fault] = {}
        self._slow: set[int] = set()
        self._armed: tuple[int, Fault] | None = None
        """A fault that waits for a collective, or for the checkpoint, of this phase."""
        self._before: int | None = None
        """Inode of the folder that the checkpoint will replace."""
        self._run: Run
        self._strategy: Strategy
        self._marks.mkdir(exist_ok=True)

    def run_built(self, run: Run, strategy: Strategy) -> None:
        """Select the faults of this rank."""
        self._run, self._strategy = run, strategy
        self._faults = {number: fault for number, fault in self._all.items() if fault.rank == run.identity}
        self._slow, self._armed = set(), None

    def phase_begins(self, step: int, phase: Phase, micro: int) -> None:
        """Inject the faults of this place."""
        self._armed = None
        for number, fault in self._faults.items():
            if number in self._slow and fault.phase == phase:
                time.sleep(fault.seconds)
            elif (fault.step, fault.phase, fault.micro) == (step, phase, micro):
                _ACTS[fault.kind](self, number, fault)

    def _take(self, number: int, fault: Fault, where: str = "") -> bool:
        """Return True if this fault should still occur, and mark it as having occurred, with the place."""
        for time_ in range(fault.times):
            try:
                with (self._marks / f"{number}.{time_}").open("x") as mark:
                    mark.write(where)
            except FileExistsError:
                continue
            return True
        return False

    def _arm(self, number: int, fault: Fault) -> None:
        """Let the fault occur in the next collective of the phase, or in its checkpoint."""
        self._armed = (number, fault)

    # ---- the process -------------------------------------------------------------------------------------------------

    def _raise(self, number: int, fault: Fault) -> None:
        raise RuntimeError("the program did not expect this error")

    def _kill(self, number: int, fault: Fault) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _kill_midway(self, number: int, fault: Fault) -> None:
        self.kill_after(fault.signs, lambda where: self._take(number, fault, where), fault.sent_bytes)

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
        """Put a NaN into the gradient of one parameter when it is computed."""
        parameter = next(p for p in self._strategy.model.parameters() if p.requires_grad)

        def spoil(grad: Tensor) -> Tensor | None:
            handle.remove()
            return _with_nan(grad) if self._take(number, fault) else None

        handle = parameter.register_hook(spoil)  # type: ignore[no-untyped-call]

    def _extra(self, number: int, fault: Fault) -> None:
        self._run.world.axis.all_reduce(torch.zeros(1, device=self._run.world.device))

    def collective_begins(self, op: str, num_ranks: int, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Skip the collective, or change the sizes of its tensors, if that is this rank's current fault."""
        if self._armed is None or not KINDS[self._armed[1].kind].alters_collective or not self._take(*self._armed):
            return args
        kind, self._armed = KINDS[self._armed[1].kind], None
        return None if kind.collective == "left_out" else _mismatched(args, num_ranks)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def _await_checkpoint(self, number: int, fault: Fault) -> None:
        """Prepare to damage the checkpoint that this phase begins; one of an earlier attempt stays unchanged."""
        self._arm(number, fault)
        self._before = _inode(self._run.folder.checkpoint(fault.step))

    def phase_ends(self, step: int, phase: Phase, micro: int) -> None:
        """Damage the checkpoint that this phase began, if that is this rank's fault."""
        if self._armed is None or not KINDS[self._armed[1].kind].damages_checkpoint or not self._take(*self._armed):
            return
        self._damage(step, _DAMAGES[self._armed[1].kind])

    def _damage(self, step: int, damage: Callable[[Path], None]) -> None:
        """Wait until the checkpoint is complete, damage this rank's part, and die as in a power failure."""
        folder, deadline = self._run.folder.checkpoint(step), time.monotonic() + self._run.config.train.timeout_s
        while _inode(folder) in (None, self._before):
            if time.monotonic() > deadline:
                raise CheckpointError(f"{folder}: does not exist, so it cannot be damaged")
            time.sleep(_POLL_S)
        damage(folder / part_file(self._run.world.rank))
        os.kill(os.getpid(), signal.SIGKILL)

    def _fill_disk(self, number: int, fault: Fault) -> None:
        """Redirect this rank's part of the next checkpoint to the device that is always full: writes raise ENOSPC."""
        staging = self._run.folder.staged_checkpoint(fault.step, self._run.attempt)
        staging.mkdir(parents=True, exist_ok=True)
        part = staging / part_file(self._run.world.rank)
        part.symlink_to(FULL_DEVICE)
        atexit.register(part.unlink, missing_ok=True)

    # ---- network and nodes -------------------------------------------------------------------------------------------

    def _close_sockets(self, number: int, fault: Fault) -> None:
        """Shut down every network connection of this process while other threads use them."""
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):  # just closed by another thread, or listening and not connected
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
        """Ask the launcher for something that a rank cannot do alone; return when it is done."""
        launch = launch_dir()
        if launch is None:
            raise UsageError(f"no launcher that could {act.replace('_', ' a ')}", "start the world with frog chaos")
        path = launch / "requests" / f"{act}_{number}_{os.getpid()}.json"
        write_typed(path, LaunchRequest(act=act, node=self._node()))
        deadline = time.monotonic() + _REQUEST_S
        while not path.with_suffix(".done").exists():
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the launcher did not answer the request to {act} within {_REQUEST_S:g} s",
                    "was it started by frog run?",
                )
            time.sleep(_POLL_S)

    def _node(self) -> int:
        """Number of the simulated node of this rank; its number in the world may differ after the world has shrunk."""
        match = re.fullmatch(r"node(\d+)", host_name())
        return int(match[1]) if match else self._run.world.env.node_rank


_Act = Callable[[Injector, int, Fault], None]


def _at_once(act: _Act) -> _Act:
    """Let the fault occur when the phase begins, unless it has already occurred."""

    def act_once(injector: Injector, number: int, fault: Fault) -> None:
        if injector._take(number, fault):
            act(injector, number, fault)

    return act_once


_ACTS: dict[str, _Act] = {
    "raise": _at_once(Injector._raise),
    "kill": _at_once(Injector._kill),
    "midway": Injector._kill_midway,
    "stop": _at_once(Injector._stop),
    "slow": _at_once(Injector._become_slow),
    "shape": Injector._arm,
    "extra": _at_once(Injector._extra),
    "missing": Injector._arm,
    "nan": Injector._spoil,
    "disk": _at_once(Injector._fill_disk),
    "port": _at_once(Injector._close_sockets),
    "node": _at_once(Injector._lose_node),
    "cut": _at_once(Injector._cut_node),
}
"""The effect of each kind of fault at the start of its phase."""


def _flip_last_byte(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def _cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


_DAMAGES: dict[str, Callable[[Path], None]] = {
    "corrupt": _flip_last_byte,
    "torn": _cut_in_half,
    "absent": Path.unlink,
}
"""The effect of each checkpoint fault on the rank's file, once the checkpoint is complete."""

_ACTS |= dict.fromkeys(_DAMAGES, Injector._await_checkpoint)


def _inode(folder: Path) -> int | None:
    """Return the inode of a folder; None if it does not exist."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return None


def _with_nan(grad: Tensor) -> Tensor:
    """Return a copy whose first element is NaN."""
    spoiled = grad.detach().clone()
    spoiled.view(-1)[0] = math.nan
    return spoiled


def _mismatched(args: Sequence[Any], num_ranks: int) -> tuple[Any, ...]:
    """Return a collective's arguments with other tensor sizes. A shift has lists of tensors; changing either works."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if tensors:
        return (*_resized(tensors, num_ranks), *args[len(tensors) :])
    return tuple([_resized([x], num_ranks)[0] for x in arg] if isinstance(arg, Sequence) else arg for arg in args)


def _resized(tensors: Sequence[Tensor], num_ranks: int) -> list[Tensor]:
    """Return copies of half the size (double, if halving is impossible), which remain consistent with each other.

    Shapes:  a single tensor, or a pair: the larger is a multiple of the smaller, or both are slices for each rank
    """
    sizes = [tensor.numel() for tensor in tensors]
    unit = min(sizes)
    if len(sizes) == 2 and sizes[0] == sizes[1]:
        unit //= num_ranks
    keep = unit // 2 or 2 * unit
    return [_first(tensor.reshape(-1), tensor.numel() // unit * keep) for tensor in tensors]


def _first(flat: Tensor, count: int) -> Tensor:
    return flat[:count].clone() if count <= len(flat) else torch.cat([flat, flat])[:count]
