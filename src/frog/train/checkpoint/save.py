"""Asynchronous checkpoints: a step blocks for one copy in memory, a thread does the rest.

The ranks coordinate only through the shared file system:
  every rank   copies its partition of the tensors, then (thread) writes rank_N.safetensors and rank_N.json, with
               the file's size and SHA-256, into a folder whose name starts with a dot
  rank 0       (thread) waits for every rank_N.json, writes manifest.json, renames the folder to step_NNNNNNNN
So a folder named step_NNNNNNNN is complete; the next start deletes the other folders that a crash left behind.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from frog.core.errors import CheckpointError, ErrorFacts, system_cause
from frog.core.files import put_aside, put_back, put_in_place, remove
from frog.core.runs.folder import RunFolder
from frog.core.runs.manifest import (
    FileEntry,
    Manifest,
    PartReport,
    Piece,
    TensorEntry,
    part_file,
    report_file,
    write_manifest,
)
from frog.core.schema import read_typed, write_typed
from frog.train.checkpoint.staging import StagedFile, partition
from frog.train.comm.local_shard import LocalShard

_POLL_S = 0.01
_PARTS_S = 2.0
"""Minimum time that rank 0 of a failed run waits for the other ranks' parts."""


class Saver:
    """Writes the checkpoints of one run from one rank.

    shards: this rank's shards. It writes all shards that no other rank has, and an even partition of replicated ones.
    own: per-rank tensors, such as the state of the random generator.
    """

    def __init__(
        self,
        folder: RunFolder,
        rank: int,
        world_size: int,
        shards: Sequence[LocalShard],
        own: Mapping[str, Tensor],
        *,
        attempt: str,
        keep_last: int,
        timeout_s: float,
        on_commit: Callable[[int, int, int], None] = lambda step, payload_bytes, write_ns: None,
    ) -> None:
        self._folder, self._rank, self._world_size = folder, rank, world_size
        self._attempt, self._keep_last, self._timeout_s, self._on_commit = attempt, keep_last, timeout_s, on_commit
        self._mine = choose(shards)
        self._staged = StagedFile({key: shard.tensor for key, shard in self._mine.items()} | _own_names(own, rank))
        self._thread: threading.Thread | None = None
        self._before: threading.Thread | None = None
        self._part_done = threading.Event()
        self._error: CheckpointError | None = None
        self._abandoned_s: float | None = None
        self.last_step: int | None = None

    @property
    def payload_bytes(self) -> int:
        """Size of this rank's part."""
        return self._staged.payload_bytes

    def save(
        self, step: int, state: dict[str, Any], own: Mapping[str, Tensor], shards: Sequence[LocalShard] | None = None
    ) -> int:
        """Start a checkpoint; return how many nanoseconds this call blocked.

        Blocks while this rank is still writing its part of the last checkpoint, and until the one before that is
        complete: all ranks have written their parts of it if they run their steps together.
        shards: the current shards, if they are not views of the ones that the constructor received.

        Raises:  CheckpointError if the last checkpoint could not be written.
        """
        start_ns = time.monotonic_ns()
        self.wait_part()
        self.check()
        if self._before is not None:
            self._before.join()
        if shards is not None:
            self._mine = choose(shards)
        self._staged.stage({key: shard.tensor for key, shard in self._mine.items()} | _own_names(own, self._rank))
        self._before, self._part_done = self._thread, threading.Event()
        words = (step, state, self._part_done, self._before)
        self._thread = threading.Thread(target=self._run, args=words, name=f"checkpoint {step}", daemon=True)
        self._thread.start()
        self.last_step = step
        return time.monotonic_ns() - start_ns

    @property
    def is_settled(self) -> bool:
        """True if the last checkpoint is complete, or none was started. False if rank 0 was lost first."""
        if self._thread is None or self.last_step is None:
            return True
        staging = self._folder.staged_checkpoint(self.last_step, self._attempt)
        return self._error is None and not self._thread.is_alive() and not staging.exists()

    def check(self) -> None:
        """Raise CheckpointError if a checkpoint has failed. Does not block."""
        if self._error is not None:
            raise self._error

    def wait_part(self) -> None:
        """Wait until this rank has written its part of the current checkpoint, or failed to."""
        if self._thread is not None:
            self._part_done.wait()

    def wait(self) -> None:
        """Wait until the current checkpoint is on disk. Raises CheckpointError if it failed."""
        if self._thread is not None:
            self._thread.join()
        self.check()

    def abandon(self, grace_s: float) -> None:
        """Give the current checkpoint of a failed run `grace_s` seconds to finish. Never raises."""
        self._abandoned_s = time.monotonic()
        if self._thread is not None:
            self._thread.join(grace_s)

    def _run(
        self, step: int, state: dict[str, Any], part_done: threading.Event, before: threading.Thread | None
    ) -> None:
        staging = self._folder.staged_checkpoint(step, self._attempt)
        try:
            start_ns = time.monotonic_ns()
            self._write_part(staging)
            own_s = (time.monotonic_ns() - start_ns) / 1e9
            part_done.set()
            if before is not None:
                before.join()
            if self._rank == 0 and self._error is None:
                self._await_parts(staging, own_s)
                payload_bytes = self._commit(staging, step, state)
                self._on_commit(step, payload_bytes, time.monotonic_ns() - start_ns)
        except Exception as error:
            self._remove_part(staging)
            if not isinstance(error, CheckpointError):
                what = f"checkpoint of step {step} could not be written to {self._folder.checkpoints}: {error}"
                facts = ErrorFacts(cause=system_cause(error), step=step)
                cause, error = error, CheckpointError(what, disk_full_hint(self._folder), facts)
                error.__cause__ = cause
            self._error = self._error or error
            part_done.set()
            if before is not None:
                before.join()

    def _remove_part(self, staging: Path) -> None:
        """Delete this rank's part of a failed checkpoint; the other ranks detect the failure themselves."""
        with contextlib.suppress(OSError):
            for name in (part_file(self._rank), report_file(self._rank)):
                (staging / name).unlink(missing_ok=True)

    def _write_part(self, staging: Path) -> None:
        staging.mkdir(parents=True, exist_ok=True)
        path = staging / part_file(self._rank)
        digest = self._staged.write(path)
        tensors: dict[str, TensorEntry] = {}
        for key, shard in self._mine.items():
            dtype = str(shard.tensor.dtype).removeprefix("torch.")
            entry = tensors.setdefault(shard.name, TensorEntry(shape=list(shard.whole), dtype=dtype, pieces=[]))
            at = {"offset": list(shard.offset), "shape": list(shard.tensor.shape)}
            entry.pieces.append(Piece(file=path.name, key=key, **at))
        file = FileEntry(bytes=path.stat().st_size, sha256=digest)
        write_typed(staging / report_file(self._rank), PartReport(file=file, tensors=tensors))

    def _commit(self, staging: Path, step: int, state: dict[str, Any]) -> int:
        paths = self._reports(staging)
        reports = {part_file(rank): _read_report(path) for rank, path in enumerate(paths)}
        manifest = Manifest(
            step=step,
            world_size=self._world_size,
            state=state,
            tensors=_merge([report.tensors for report in reports.values()]),
            files={name: report.file for name, report in reports.items()},
        )
        write_manifest(staging, manifest)
        for path in paths:
            path.unlink()
        put_in_place(staging, self._folder.checkpoint(step))
        self._prune()
        return manifest.payload_bytes

    def _reports(self, staging: Path) -> list[Path]:
        """Return the paths of the reports that ranks write after their parts."""
        return [staging / report_file(rank) for rank in range(self._world_size)]

    def _await_parts(self, staging: Path, own_s: float) -> None:
        """Wait for the other ranks' parts.

        A failed run has often lost a rank, whose part never appears; the other parts take about `own_s`, the time of
        this rank's part.
        """
        reports, deadline = self._reports(staging), time.monotonic() + self._timeout_s
        while absent := [path for path in reports if not path.exists()]:
            if self._abandoned_s is not None:
                deadline = min(deadline, self._abandoned_s + max(own_s, _PARTS_S))
            if time.monotonic() > deadline:
                names = ", ".join(path.stem for path in absent)
                waited = "" if self._abandoned_s is not None else f" within {self._timeout_s:g} s"
                raise CheckpointError(
                    f"{staging}: no part from {names}{waited}",
                    "check that the run folder is on a file system that all nodes share",
                )
            time.sleep(_POLL_S)

    def _prune(self) -> None:
        for step in self._folder.checkpoint_steps()[: -self._keep_last]:
            with contextlib.suppress(OSError):  # failing to delete an old checkpoint must not end the run
                remove(self._folder.checkpoint(step))


def choose(shards: Sequence[LocalShard]) -> dict[str, LocalShard]:
    """Return the shards that this rank writes, by key: all unique shards, and an even partition of replicated ones."""
    chosen: dict[str, LocalShard] = {}
    by_copies: dict[tuple[int, int], dict[str, LocalShard]] = {}
    for shard in shards:
        if shard.copies is not None and shard.tensor.numel():
            by_copies.setdefault(shard.copies, {})[shard.key] = shard
    for (number, count), group in by_copies.items():
        mine = partition({key: shard.tensor for key, shard in group.items()}, count)[number]
        chosen |= {key: group[key] for key in mine}
    return chosen


def _read_report(path: Path) -> PartReport:
    return read_typed(path, PartReport, "check the shared file system for errors", CheckpointError)


def _merge(ranks: Sequence[Mapping[str, TensorEntry]]) -> dict[str, TensorEntry]:
    """Merge the tensors of all ranks' parts; each gets all its pieces."""
    merged: dict[str, TensorEntry] = {}
    for tensors in ranks:
        for name, entry in tensors.items():
            merged.setdefault(name, replace(entry, pieces=[])).pieces.extend(entry.pieces)
    return merged


def disk_full_hint(folder: RunFolder) -> str:
    """Return the hint for a run whose files could not be written."""
    good = folder.checkpoint_steps()
    kept = f"the last complete checkpoint is from step {good[-1]}" if good else "no checkpoint exists yet"
    return f"{kept}; free disk space, then `{folder.resume_command}`"


def clean_up(folder: RunFolder) -> None:
    """Restore checkpoints whose replacement failed, and delete unfinished ones. One rank calls this before any save."""
    for path in folder.unfinished_checkpoints():
        target = path.with_name(path.name.split(".")[1])
        with contextlib.suppress(OSError):
            put_back(target) if path == put_aside(target) else remove(path)


def _own_names(own: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    return {f"rank_{rank}/{name}": tensor for name, tensor in own.items()}
