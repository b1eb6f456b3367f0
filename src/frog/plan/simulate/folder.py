"""Write a simulated run as a run folder: the events that such a run would leave, marked as simulated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from frog.core.errors import ErrorFacts
from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.utilization import utilization
from frog.plan.simulate.disturbances import Disturbances, Places
from frog.plan.simulate.simulation import Simulated
from frog.plan.simulate.trace import Call, Span, Trace
from frog.plan.simulated_run import START_NS, SimulatedRun, host_of, pid_of, to_ns

MOST_RANKS = 1024
_TIMEOUT_S = 600.0
"""Time after which a rank gives a collective up; NCCL's default in PyTorch."""
_NOTICED_NS = 10**8
"""Time until the peers of a killed process notice that."""


def write_folder(
    path: Path, run: PlannedRun, simulated: Simulated, disturbed: Disturbances, num_steps: int, command: list[str]
) -> None:
    """Write the folder of a simulation with a trace. It ended early if one of its `num_steps` never ends."""
    assert simulated.trace is not None
    _Writer(RunFolder(path), run, simulated.trace, disturbed, command).write(simulated.step_s, num_steps)


class _Writer:
    def __init__(
        self, folder: RunFolder, run: PlannedRun, trace: Trace, disturbed: Disturbances, command: list[str]
    ) -> None:
        self.run, self.trace, self.disturbed = run, trace, disturbed
        self.layout = layout = run.layout
        self.places = Places(layout, run.cluster, disturbed)
        nodes = {int(rank): int(self.places.nodes_PDI[place]) for place, rank in np.ndenumerate(self.places.ranks_PDI)}
        mesh = {"pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "tp": layout.tp}
        end_ns = to_ns(_last_end(trace) + _TIMEOUT_S)  # after all time-outs
        self.about = SimulatedRun(folder, run.cluster, nodes, mesh, command, end_ns)

    def write(self, step_s: list[float], num_steps: int) -> None:
        self.about.create()
        failures = {}
        for place, rank in np.ndenumerate(self.places.ranks_PDI):
            error = self._write_rank(int(rank), place, step_s)
            if error is not None:
                failures[int(rank)] = error
        has_failed = math.isinf(step_s[-1])
        self._launcher(failures, has_failed)
        layout = {name: value for name, value in asdict(self.layout).items() if name != "traits"}
        train = {"steps": num_steps, "grad_accum": self.layout.num_micro}
        self.about.write_run(layout, train, self.run.model.num_parameters())
        self._record(step_s, failures, has_failed)

    # ---- one rank ----------------------------------------------------------------------------------------------------

    def _write_rank(self, rank: int, place: tuple[int, ...], step_s: list[float]) -> dict[str, Any] | None:
        """Write the events of a rank, and the heartbeat of one that never ends; return the error that it reports."""
        stage, replica, member = place
        timeline = _RankTimeline(self.trace.stages[stage], replica, member)
        lines = [self._start(rank, place), *timeline.lines(), *self._steps(place, step_s)]
        is_lost = self.disturbed.lost_rank is not None and self.disturbed.lost_rank[0] == rank
        if timeline.open is not None:
            self._heartbeat(rank, place, timeline.open, "running" if is_lost else "failed")
        error, stuck = None, timeline.stuck
        if stuck is not None and not is_lost:
            error = self._error(stuck, timeline.stuck_s)
            lines.append({"event": "error", "step": stuck.step, "phase": stuck.phase, **error})
        if not is_lost:
            lines.append(self.about.end(self._completed(step_s), "completed" if error is None else "failed"))
        self.about.write_rank(rank, lines)
        return error

    def _start(self, rank: int, place: tuple[int, ...]) -> dict[str, Any]:
        tp = self.layout.tp
        on_mesh = {"pp": place[0], "dp": place[1], "cp": place[2] // tp, "tp": place[2] % tp}
        return self.about.start(rank, rank % self.run.cluster.gpus_per_node, on_mesh)

    def _steps(self, place: tuple[int, ...], step_s: list[float]) -> Iterator[dict[str, Any]]:
        step = self.run.step
        tokens = self.layout.global_batch * self.layout.seq_len
        for number, seconds in enumerate(step_s, 1):
            end = self.trace.step_ends[number - 1][place[:2]]
            if math.isfinite(end) and math.isfinite(seconds):
                yield self.about.step(
                    number,
                    tokens=tokens,
                    seconds=seconds,
                    mfu=utilization(step) * step.step.total / seconds,
                    memory_bytes=step.memory.total,
                    end_s=end,
                )

    def _heartbeat(self, rank: int, place: tuple[int, ...], span: Span, status: str) -> None:
        """Write the last heartbeat of a rank that never finished a phase."""
        phase_ns, node = to_ns(float(span.start[place[1]])), self.about.nodes[rank]
        beat = {
            "rank": rank, "pid": pid_of(rank), "node_rank": node, "host": host_of(node), "attempt": 0,
            "world_size": self.layout.num_gpus, "timeout_s": _TIMEOUT_S, "status": status, "step": span.step,
            "phase": span.phase, "micro": span.micro, "phase_ns": phase_ns, "num_collectives": 0, "open": [],
            "beat_ns": phase_ns, "unix_ns": self.about.unix_ns + phase_ns,
        }  # fmt: skip
        write_json(self.about.folder.heartbeat(rank), beat)

    def _error(self, stuck: Call, since_s: float) -> dict[str, Any]:
        """Return the error of a waiting rank: peers of a killed process lose their connections, others time out."""
        lost, at_ns = self.disturbed.lost_rank, to_ns(since_s + _TIMEOUT_S)
        if lost is not None:
            at_ns = max(to_ns(since_s), self._last_ns(lost[0])) + _NOTICED_NS
        call, waited_s = f"{stuck.op} of {stuck.payload_bytes} bytes on {stuck.axis}", (at_ns - to_ns(since_s)) / 1e9
        facts = ErrorFacts(
            cause="closed" if lost else "timed_out",
            op=stuck.op,
            axis=stuck.axis,
            payload_bytes=stuck.payload_bytes,
            waited_s=waited_s,
        )
        how = "lost its connection" if lost else "timed out"
        return {
            "type": "CommError", "message": f"simulated: {call} {how} after {waited_s:.1f} s", "hint": None,
            "facts": facts.as_json(), "unix_ns": self.about.unix_ns + at_ns,
        }  # fmt: skip

    # ---- the whole run -----------------------------------------------------------------------------------------------

    def _completed(self, step_s: list[float]) -> int:
        return sum(map(math.isfinite, step_s))

    def _launcher(self, failures: dict[int, dict[str, Any]], has_failed: bool) -> None:
        """Write what a launcher would have seen: which ranks failed; it ends the run."""
        lost, cut = self.disturbed.lost_rank, self.disturbed.cut_node
        exits = [self._exit(lost[0], -9, None)] if has_failed and lost is not None else []
        for rank, error in failures.items():
            is_cut = cut is not None and rank // self.run.cluster.gpus_per_node == cut[0]  # it cannot report
            if lost is None and not is_cut:
                exits.append(self._exit(rank, 1, error))
        self.about.write_launcher(1 if has_failed else 0, exits)

    def _exit(self, rank: int, code: int, error: dict[str, Any] | None) -> dict[str, Any]:
        """Return a rank's exit; a lost one's is when its last event ended."""
        node = rank // self.run.cluster.gpus_per_node
        at_ns = error["unix_ns"] - self.about.unix_ns if error is not None else self._last_ns(rank)
        about = {"attempt": 0, "rank": rank, "node": node, "node_rank": node, "pid": pid_of(rank), "left": []}
        return self.about.told("exit", at_ns, code=code, error=error, **about)

    def _last_ns(self, rank: int) -> int:
        stage, replica = divmod(rank // (self.layout.tp * self.layout.cp), self.layout.dp)
        ends = (record.end for record in self.trace.stages[stage] if isinstance(record, Span))
        return max((to_ns(float(end[replica])) for end in ends if math.isfinite(end[replica])), default=START_NS)

    def _record(self, step_s: list[float], failures: dict[int, dict[str, Any]], has_failed: bool) -> None:
        completed = self._completed(step_s)
        error = self._first_error(failures, completed + 1) if has_failed else None
        wall_s = math.fsum(step_s[:completed])
        tokens = completed * self.layout.global_batch * self.layout.seq_len
        self.about.write_record(step=completed, tokens=tokens, wall_s=wall_s, failed=has_failed, error=error)

    def _first_error(self, failures: dict[int, dict[str, Any]], step: int) -> dict[str, Any]:
        """Return the cause of the failure: the lost rank, else the first rank whose collective timed out."""
        if self.disturbed.lost_rank is not None:
            rank = self.disturbed.lost_rank[0]
            return {"type": "LaunchError", "message": f"simulated: rank {rank} was killed by SIGKILL", "rank": rank,
                    "step": step}  # fmt: skip
        rank = min(failures, key=lambda rank: failures[rank]["unix_ns"])
        return {"type": "CommError", "message": failures[rank]["message"], "rank": rank, "step": step}


class _RankTimeline:
    """The events of one rank: those that ended, and the collective that never does."""

    def __init__(self, records: list[Span | Call], replica: int, member: int) -> None:
        self._records, self._replica, self._member = records, replica, member
        self.stuck: Call | None = None
        self.stuck_s = 0.0
        self.open: Span | None = None
        """The phase that it never finished."""

    def lines(self) -> list[dict[str, Any]]:
        lines = []
        for record in self._records:
            start, end = self._at(record.start), self._at(record.end)
            if not math.isfinite(end):
                if isinstance(record, Call) and math.isfinite(start) and self.stuck is None:
                    self.stuck, self.stuck_s = record, start
                if isinstance(record, Span) and math.isfinite(start) and self.open is None:
                    self.open = record
                continue
            event = {"event": "span", "step": record.step, "phase": record.phase, "start_ns": to_ns(start)}
            if isinstance(record, Span):
                lines.append({**event, "micro": record.micro, "end_ns": to_ns(end) - 1})
            else:
                lines.append(self._collective(record, start, end))
        self._number(lines)
        return lines

    def _collective(self, call: Call, start: float, end: float) -> dict[str, Any]:
        wait = self._at(call.wait)
        wait_ns = min(round(wait * 1e9), to_ns(end) - to_ns(start)) if math.isfinite(wait) else 0
        return {
            "event": "collective", "step": call.step, "op": call.op, "axis": call.axis, "start_ns": to_ns(start),
            "payload_bytes": call.payload_bytes, "seq": 0, "end_ns": to_ns(end), "wait_ns": wait_ns,
        }  # fmt: skip

    def _number(self, lines: list[dict[str, Any]]) -> None:
        """Number collectives in the order of their starts."""
        calls = sorted((line for line in lines if line["event"] == "collective"), key=lambda line: line["start_ns"])
        for seq, line in enumerate(calls):
            line["seq"] = seq

    def _at(self, times: Any) -> float:
        own = times[self._replica]
        return float(own if own.ndim == 0 else own[min(self._member, len(own) - 1)])


def _last_end(trace: Trace) -> float:
    """Return when the last phase or collective ended, of those that did."""
    ends = (record.end for records in trace.stages for record in records)
    return max((float(end[np.isfinite(end)].max(initial=0.0)) for end in ends), default=0.0)
