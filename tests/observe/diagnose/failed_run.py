"""Synthetic folders of failed runs: the files that ranks, heartbeats and the launcher would have left."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from run_files import record_json, run_json

from frog.core.errors import Cause, CommError, Damage, ErrorFacts, RunError, report_error
from frog.core.files import sha256_file, write_json
from frog.core.runs import EventWriter
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import LAUNCHER_FIELDS
from frog.core.runs.manifest import Manifest, manifest_hash

UNIX_NS = 1_750_000_000_000_000_000
"""Time of day when the monotonic clock is 0."""
MS = 1_000_000
PARAMETERS = 1000
GRADIENT = ("reduce", "all_reduce", "dp", 4 * (PARAMETERS + 3))
SCORE = ("evaluate", "all_reduce", "dp", 24)
SAMPLES = ("checkpoint", "all_gather", "world", 256)
Call = tuple[str, str, str, int]
"""Phase, operation, axis, bytes."""
PHASES = ("data", "forward", "backward", "reduce", "optimize", "zero")


def lost(call: Call, rank: int, waited_s: float, cause: Cause = "closed", peer: int | None = None) -> CommError:
    """Return the error of a rank whose collective failed."""
    _, op, axis, size = call
    return CommError(
        f"{op} of {size} bytes failed after {waited_s:.1f} s [rank {rank}, {axis} {rank} of 4]: {cause}",
        "another rank has left",
        ErrorFacts(cause=cause, op=op, axis=axis, payload_bytes=size, waited_s=waited_s, peer=peer),
    )


@dataclass
class Rank:
    """A synthetic rank: its clock, its events, and its last heartbeat."""

    rank: int
    pid: int
    writer: EventWriter
    now_ns: int
    node_rank: int = 0
    seq: int = 0
    step: int = 0
    phase: str | None = None
    phase_ns: int = 0
    micro: int = 0
    open: list[dict[str, Any]] = field(default_factory=list)


def _close(writers: list[EventWriter]) -> None:
    for writer in writers:
        writer.close()


class FailedRun:
    """A run of eight steps that evaluates every fourth step and saves every other one."""

    def __init__(
        self,
        path: Path,
        num_ranks: int = 4,
        num_nodes: int = 1,
        launcher: bool = True,
        mesh: dict[str, int] | None = None,
        config: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        self.mesh = mesh
        self.folder, self.num_ranks, self.num_nodes, self.launcher = RunFolder(path), num_ranks, num_nodes, launcher
        self.ranks: dict[int, Rank] = {}
        self.attempt = -1
        self.epoch = 0
        self.identities: list[int] = []
        """Permanent numbers by rank, once the world has changed."""
        self.known: set[int] = set()
        self.now_ns = 1_000_000 * MS
        self._writers: list[EventWriter] = []
        weakref.finalize(self, _close, self._writers)
        train = {"steps": 8, "grad_accum": 1, "global_batch_size": 16}
        default = {"train": train, "eval": {"every": 4}, "checkpoint": {"every": 2}}
        content = run_json(name=path.name, config=default | (config or {}), num_parameters=PARAMETERS)
        write_json(self.folder.run_json, content)
        self.folder.events.mkdir(parents=True)
        if launcher:
            nodes = [{"node": n, "host": f"node{n}", "address": f"127.0.0.{n + 1}"} for n in range(num_nodes)]
            per_node = num_ranks // num_nodes
            self.tell(
                "launch", pid=2**22 + 1, nodes=nodes, ranks_per_node=per_node, program=["x"], restarts=1, network=None
            )

    # ---- the launcher ------------------------------------------------------------------------------------------------

    def tell(self, event: str, at_ns: int | None = None, **fields: Any) -> None:
        assert fields.keys() <= set(LAUNCHER_FIELDS[event]), event
        told = {"event": event, "unix_ns": UNIX_NS + (at_ns or self.now_ns), **dict.fromkeys(LAUNCHER_FIELDS[event])}
        with open(self.folder.launcher_events, "a") as file:
            file.write(json.dumps({**told, **fields}) + "\n")

    def exit(self, rank: int, code: int, error: dict[str, Any] | None = None, late_s: float = 0.9) -> None:
        """Let the agent report a failed rank, some time after it failed. It uses the rank's number at the start."""
        own = self.ranks[rank]
        started = self.identities[rank] if self.identities else rank
        self.tell(
            "exit", own.now_ns + int(late_s * 1e9), attempt=self.attempt, rank=started, node=own.node_rank,
            node_rank=own.node_rank, pid=own.pid, code=code, error=error, traceback=None, left=[],
        )  # fmt: skip

    def left_out(self, rank: int, silent_s: float) -> None:
        """Let the others continue without a rank that was silent for that long, and have it killed."""
        own = self.ranks[rank]
        at_ns, started = own.now_ns + int(silent_s * 1e9), self.identities[rank] if self.identities else rank
        self.tell("left_out", at_ns, attempt=self.attempt, rank=started, pid=own.pid)
        self.exit(rank, -9, late_s=silent_s + 0.1)

    def hang(self, rank: int, kind: str, waited_s: float) -> None:
        own = self.ranks[rank]
        beat = self.beat_of(own, "running")
        at_ns = own.now_ns + int(waited_s * 1e9)
        self.tell(
            "hang", at_ns, attempt=self.attempt, rank=rank, pid=own.pid, kind=kind, waited_s=waited_s, heartbeat=beat
        )

    def end(self, code: int, seconds: float = 30) -> None:
        self.now_ns = max(own.now_ns for own in self.ranks.values()) + int(seconds * 1e9)
        if self.launcher:
            self.tell("end", code=code)

    # ---- a world -----------------------------------------------------------------------------------------------------

    def start(self, from_step: int = 0, refusal: str | None = None, passed_over: Sequence[Damage] = ()) -> None:
        """Let all ranks begin, or begin again, or refuse to."""
        self.attempt += 1
        if self.ranks:
            self.now_ns = max(self.now_ns, *(own.now_ns for own in self.ranks.values())) + 60_000 * MS
        per_node = self.num_ranks // self.num_nodes
        for rank in range(self.num_ranks):
            pid = 2**22 + 100 * (self.attempt + 1) + rank  # above Linux's maximum, so of no process here
            self.ranks[rank] = Rank(rank, pid, self.write(rank), self.now_ns, rank // per_node, step=from_step)
        for node in range(self.num_nodes if self.launcher else 0):
            own = [rank for rank in self.ranks.values() if rank.node_rank == node]
            self.tell(
                "world", attempt=self.attempt, node=node, node_rank=node, ranks=[rank.rank for rank in own],
                world_size=self.num_ranks, master_addr="127.0.0.1", master_port=1, pids=[rank.pid for rank in own],
            )  # fmt: skip
        for rank in self.ranks.values():
            if from_step or refusal:
                self.call(rank.rank, ("", "broadcast", "world", 0))
            if refusal:
                self.fail(rank.rank, RunError(refusal))
                continue
            self.emit_start(rank, per_node, from_step, passed_over)
            if from_step == 0:
                self.do(rank.rank, 0, "evaluate", SCORE)
            self.beat(rank.rank)

    def write(self, rank: int) -> EventWriter:
        """Return a new writer of a rank's events, closed when nothing refers to this run any more."""
        self._writers.append(EventWriter(self.folder.rank_events(rank)))
        return self._writers[-1]

    def emit_start(self, rank: Rank, per_node: int, step: int, passed_over: Sequence[Damage] = ()) -> None:
        mesh = {"pp": 1, "dp": self.num_ranks, "cp": 1, "tp": 1} | (self.mesh or {})
        rank.writer.emit(
            "start", rank=rank.rank, world_size=self.num_ranks, local_rank=rank.rank % per_node,
            node_rank=rank.node_rank, host=f"node{rank.node_rank}", pid=rank.pid, device="cpu", threads=1,
            step=step, unix_ns=UNIX_NS + rank.now_ns, mono_ns=rank.now_ns, mesh=mesh,
            place={"pp": rank.rank // mesh["dp"], "dp": rank.rank % mesh["dp"], "cp": 0, "tp": 0},
            passed_over=[asdict(damage) for damage in passed_over],
        )  # fmt: skip

    def steps(self, first: int, last: int, *ranks: int) -> None:
        """Let some or all ranks take normal steps, each with its evaluation and checkpoint if due."""
        for step in range(first, last + 1):
            for rank in ranks or self.ranks:
                self.up_to(rank, step, None)
                self.after(rank, step)

    def up_to(self, rank: int, step: int, phase: str | None) -> None:
        """Run a rank through a step until it enters a phase; None: the full step."""
        for name in PHASES:
            self.enter(rank, step, name)
            if name == phase:
                return
            self.do(rank, step, name, *([GRADIENT] if name == "reduce" else []))
        own = self.ranks[rank]
        own.writer.emit(
            "step", step=step, loss=2.0, loss_mean=2.0, grad_norm_local=1.0, grad_norm=1.0, learning_rate=0.1,
            tokens=1, tokens_per_s=1.0, mfu=None, memory_bytes=1, loss_scale=None, skipped=False, sample_ids=[],
            end_ns=own.now_ns,
        )  # fmt: skip

    def after(self, rank: int, step: int) -> None:
        """Run the evaluation and checkpoint that are due after a step."""
        if step % 4 == 0:
            self.do(rank, step, "evaluate", SCORE)
        if step % 2 == 0:
            self.do(rank, step, "checkpoint", SAMPLES)

    def do(self, rank: int, step: int, phase: str, *calls: Call, took_ms: int = 10, wait_ms: int = 2) -> None:
        """Run a phase from beginning to end."""
        self.enter(rank, step, phase)
        own = self.ranks[rank]
        own.now_ns += took_ms * MS
        for call in calls:
            self.call(rank, call, wait_ms)
        own.writer.emit("span", step=step, phase=phase, micro=0, start_ns=own.phase_ns, end_ns=own.now_ns)
        own.phase = None
        self.beat(rank)

    def enter(self, rank: int, step: int, phase: str | None) -> None:
        own = self.ranks[rank]
        own.step, own.phase, own.phase_ns = step, phase, own.now_ns
        self.beat(rank)

    def call(self, rank: int, call: Call, ms: int = 2) -> None:
        """Run a collective from beginning to end."""
        own = self.ranks[rank]
        start_ns, own.now_ns = own.now_ns, own.now_ns + ms * MS
        own.writer.emit(
            "collective", step=own.step, op=call[1], axis=call[2], payload_bytes=call[3], seq=own.seq,
            start_ns=start_ns, end_ns=own.now_ns, wait_ns=ms * MS,
        )  # fmt: skip
        own.seq += 1

    def begin(self, rank: int, call: Call) -> None:
        """Begin a collective that never ends."""
        own = self.ranks[rank]
        own.open.append(
            {"seq": own.seq, "op": call[1], "axis": call[2], "payload_bytes": call[3], "start_ns": own.now_ns}
        )
        own.seq += 1
        self.beat(rank)

    # ---- how ranks end -----------------------------------------------------------------------------------------------

    def fail(self, rank: int, error: Exception, after_s: float = 0.0, code: int | None = 1) -> None:
        """End a rank with its own error."""
        own = self.ranks[rank]
        own.now_ns += int(after_s * 1e9)
        report = {**report_error(error), "unix_ns": UNIX_NS + own.now_ns}
        own.writer.emit("error", step=own.step, phase=own.phase, **report)
        own.writer.emit("end", step=own.step, status="failed", weights_sha256=None)
        self.beat(rank, "failed")
        if code is not None and self.launcher:
            self.exit(rank, code, report)

    def lose(self, *ranks: int, call: Call = GRADIENT, after_s: float = 0.5, cause: Cause = "closed") -> None:
        """Let ranks wait in a collective of a step that fails."""
        for rank in ranks:
            self.begin(rank, call)
            self.fail(rank, lost(call, rank, after_s, cause), after_s)

    def complete(self, status: str = "completed", step: int = 8) -> None:
        """End all ranks normally."""
        for rank, own in self.ranks.items():
            own.writer.emit("end", step=step, status=status, weights_sha256=None)
            own.phase = None
            self.beat(rank, status)
        write_json(self.folder.record_json, record_json(status=status, step=step))

    def beat(self, rank: int, status: str = "running") -> None:
        own = self.ranks[rank]
        path = self.folder.heartbeat(rank)
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)  # in place, as the real one
        os.pwrite(descriptor, json.dumps(self.beat_of(own, status)).ljust(2048).encode(), 0)
        os.close(descriptor)

    def beat_of(self, own: Rank, status: str) -> dict[str, Any]:
        return {
            "rank": own.rank, "pid": own.pid, "node_rank": own.node_rank, "host": f"node{own.node_rank}",
            "attempt": self.attempt, "world_size": self.num_ranks, "status": status, "step": own.step,
            "phase": own.phase, "micro": 0, "phase_ns": own.phase_ns, "num_collectives": own.seq, "open": own.open,
            "beat_ns": own.now_ns, "unix_ns": UNIX_NS + own.now_ns, "timeout_s": 0.0,
        }  # fmt: skip

    # ---- a world that changes ----------------------------------------------------------------------------------------

    def change(self, step: int, kept: Sequence[int], joined: int = 0) -> None:
        """Let the ranks `kept` continue, in the files of their new numbers; others join."""
        before, was = self.identities or list(self.ranks), dict(self.ranks)
        self.epoch += 1
        aside = self.folder.heartbeats / f"attempt_{self.epoch}"
        aside.mkdir()
        for rank in was:
            self.folder.heartbeat(rank).rename(aside / f"rank_{rank}.json")
        first = max(self.known | {*before}) + 1
        came = list(range(first, first + joined))
        self.identities = [*(before[rank] for rank in kept), *came]
        self.known |= {*before, *came}
        self.num_ranks = len(self.identities)
        began_ns = max(was[rank].now_ns for rank in kept) + 100 * MS
        pids = [*(was[rank].pid for rank in kept), *(2**22 + 5000 + identity for identity in came)]
        self.ranks = {rank: Rank(rank, pid, self.write(rank), began_ns, step=step) for rank, pid in enumerate(pids)}
        for rank in self.ranks.values():
            self.emit_start(rank, self.num_ranks, step)
            rank.now_ns += 200 * MS
            rank.writer.emit(
                "membership", step=step, epoch=self.epoch, identity=self.identities[rank.rank],
                members=self.identities, lost=sorted({*before} - {*self.identities}), joined=came, took_ns=200 * MS,
            )  # fmt: skip
            self.beat(rank.rank)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, step: int) -> Path:
        """Write a complete checkpoint, with a file of each rank."""
        path = self.folder.checkpoint(step)
        path.mkdir(parents=True)
        for rank in self.ranks:
            (path / f"rank_{rank}.safetensors").write_bytes(bytes(range(100)))
        files = {f.name: {"bytes": f.stat().st_size, "sha256": sha256_file(f)} for f in path.iterdir()}
        manifest = {
            "format": Manifest.FORMAT, "step": step, "world_size": self.num_ranks, "state": {}, "tensors": {},
            "files": files,
        }  # fmt: skip
        write_json(path / "manifest.json", {**manifest, "sha256": manifest_hash(manifest)})
        return path

    def log(self, rank: int, text: str) -> None:
        path = self.folder.rank_log(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"2026-11-21 10:00:00.000 rank {rank} | {text}\n")

    def reword(self) -> None:
        """Change the text in every place that is meant for people."""
        for path in self.folder.events.glob("*.jsonl"):
            path.write_text("".join(_reworded_line(line) for line in path.read_text().splitlines(keepends=True)))
        for path in self.folder.logs.rglob("*.log"):
            path.write_text("".join("quak\n" for _ in path.read_text().splitlines()))


_FOR_PEOPLE = ("message", "hint", "what", "traceback")


def _reworded_line(line: str) -> str:
    try:
        return json.dumps(_reworded(json.loads(line))) + "\n"
    except json.JSONDecodeError:  # torn
        return line


def _reworded(value: Any) -> Any:
    if isinstance(value, list):
        return [_reworded(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: "quak" if key in _FOR_PEOPLE and one else _reworded(one) for key, one in value.items()}
