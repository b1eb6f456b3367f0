"""Write the planned step of a program as a run folder, marked as simulated: its phases and collectives on a timeline.

The folder's ranks are those that ran, numbered from 0 in their order: each stands for all ranks like it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frog.core.runs.folder import RunFolder
from frog.plan.program.program_text import ProgramPlan
from frog.plan.program.program_time import Trace
from frog.plan.simulated_run import START_NS, SimulatedRun, to_ns


def write_program_folder(path: Path, plan: ProgramPlan, command: list[str]) -> None:
    """Write the folder of a plan. `command` is what the user typed."""
    per_node, total_s, size = plan.cluster.gpus_per_node, plan.time.total, len(plan.times)
    used = sorted({rank // per_node for rank in plan.times})
    nodes = {number: used.index(rank // per_node) for number, rank in enumerate(plan.times)}
    mesh = {"pp": size, "dp": 1, "cp": 1, "tp": 1}
    run = SimulatedRun(RunFolder(path), plan.cluster, nodes, mesh, command, to_ns(total_s))
    run.create()
    for number, (rank, spent) in enumerate(plan.times.items()):
        start = run.start(number, rank % per_node, {"pp": number, "dp": 0, "cp": 0, "tp": 0})
        memory = plan.memories[rank].total
        step = run.step(1, tokens=plan.tokens, seconds=total_s, mfu=plan.mfu, memory_bytes=memory, end_s=total_s)
        run.write_rank(number, [start, *_events(spent.trace), step, run.end(1, "completed")])
    run.write_launcher(code=0)
    layout = {
        "program": plan.program, "cluster": plan.cluster_name, "gpus": plan.num_gpus, "ranks": list(plan.times)
    }  # fmt: skip
    run.write_run(layout, {"steps": 1}, max(facts["parameters"] for facts in plan.of_rank.values()))
    run.write_record(step=1, tokens=plan.tokens, wall_s=total_s)


def _events(trace: Trace) -> list[dict[str, Any]]:
    """Return the phases and collectives of a rank."""
    begin = {"phase": "data", "micro": 0, "start_ns": START_NS, "end_ns": START_NS}
    events: list[dict[str, Any]] = [{"event": "span", "step": 1, **begin}]  # a rank may wait before it computes
    for span in trace.spans:
        times = {"start_ns": to_ns(span.start), "end_ns": to_ns(span.end)}
        events.append({"event": "span", "step": 1, "phase": span.phase, "micro": span.micro, **times})
    for seq, call in enumerate(sorted(trace.calls, key=lambda call: call.start)):
        start, end = to_ns(call.start), to_ns(call.end)
        about = {"op": call.op, "axis": call.axis, "payload_bytes": int(call.num_bytes), "seq": seq}
        waits = min(end - start, round(call.waits * 1e9))
        events.append({"event": "collective", "step": 1, **about, "start_ns": start, "end_ns": end, "wait_ns": waits})
    return events
