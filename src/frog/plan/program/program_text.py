"""The plan of a program as text, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from frog.core.units import count, format_bytes, format_count
from frog.plan.estimate.hardware import Cluster
from frog.plan.memory import fit_warning
from frog.plan.program.program_memory import KINDS, ProgramMemory, memory_of
from frog.plan.program.program_time import ProgramTime
from frog.plan.program.ranks_together import play_together, shared_groups

_Key = TypeVar("_Key")
_GIB = 2**30
_MOST_LINES = 5
_CAUSES = {
    "products": "products",
    "attention": "attention",
    "memory": "memory-bound operations",
    "launch": "GPU waits for Python's launches",
    "communication": "communication, exposed",
    "waiting": "waits for other ranks",
    "slowed": "computation slowed by communication",
    "other": "fixed time and the slowest node",
}


@dataclass(frozen=True)
class ProgramPlan:
    """What a cluster would do with a recorded program."""

    of_rank: Mapping[int, dict[str, Any]]
    """The facts of the planned rank, and of those that it exchanges messages with."""
    program: str
    cluster_name: str
    cluster: Cluster
    nodes: int
    rank: int

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the planned rank."""
        return self.of_rank[self.rank]

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.cluster.gpus_per_node

    @property
    def tokens(self) -> int:
        """Tokens that a rank looks up in its largest embedding, in the step; 0 if there is none."""
        return max((number for facts in self.of_rank.values() for number in facts["embedded"].values()), default=0)

    @cached_property
    def memories(self) -> dict[int, ProgramMemory]:
        """The memory at the peak, by rank."""
        return {rank: memory_of(facts) for rank, facts in self.of_rank.items()}

    @property
    def memory(self) -> ProgramMemory:
        return self.memories[self.rank]

    @cached_property
    def times(self) -> dict[int, ProgramTime]:
        """The time of the step, by rank: the ranks end together."""
        return play_together(self.of_rank, self.cluster, self.num_gpus)

    @property
    def time(self) -> ProgramTime:
        return self.times[self.rank]

    @property
    def model_flops(self) -> float:
        """Products and attention of the model's passes, on all ranks that ran."""
        return sum(time.model_flops for time in self.times.values())

    @property
    def mfu(self) -> float:
        """The model's operations, of what the GPUs could do in the step."""
        return self.model_flops / (len(self.times) * self.cluster.gpu.peak_bf16 * self.time.total)


def program_lines(plan: ProgramPlan) -> list[str]:
    """Return the lines of a plan: memory, time, utilization, and what was not seen."""
    facts, gpu = plan.facts, plan.cluster.gpu
    memory, time = plan.memory, plan.time
    where, whose = "this rank", ""
    if len(plan.of_rank) > 1:
        where, whose = "these ranks", f" in the modules of rank {plan.rank}"
    lines = [
        f"{plan.program} on {plan.num_gpus} {gpu.name} ({plan.cluster_name}, {count(plan.nodes, 'node')}): rank "
        f"{plan.rank}, optimizer step {facts['steps']}",
        f"{format_count(facts['parameters'])} parameters{whose}, {format_count(facts['rank_parameters'])} on this rank",
        "",
        *_rank_lines(plan),
        *_memory_lines(memory, facts["lines"], gpu.memory),
        "",
        *_time_lines(time, facts["lines"]),
        "",
        f"MFU {100 * plan.mfu:.1f} %: {plan.model_flops:.4g} operations of products and attention on {where}",
    ]
    if plan.tokens:
        groups = plan.num_gpus / len(plan.of_rank)
        each = f"each of {plan.num_gpus} ranks" if len(plan.of_rank) == 1 else f"each {len(plan.of_rank)} of them"
        rate = plan.tokens * groups / time.total
        lines.append(f"{plan.tokens:,} tokens on {where}; {rate:,.0f} tokens/s if {each} has its own")
    return [*lines, "", "not seen", *(f"  {note}" for note in _notes(plan))]


def _rank_lines(plan: ProgramPlan) -> Iterator[str]:
    """Yield a line for each of several ranks: what it holds, and how long it waits for the others."""
    if len(plan.of_rank) == 1:
        return
    yield f"{count(len(plan.of_rank), 'rank')} exchange messages, and each ran:"
    yield f"  {'rank':<6}{'parameters':>12}{'memory, GiB':>13}{'busy, s':>11}{'waits, s':>11}"
    for rank, time in plan.times.items():
        memory = plan.memories[rank].total
        verdict = fit_warning(memory, plan.cluster.gpu.memory) or "fits"
        held = format_count(plan.of_rank[rank]["rank_parameters"])
        share = f"{time.total - time.waiting:>11.4f}{time.waiting:>11.4f} ({100 * time.waiting / time.total:.1f} %)"
        yield f"  {rank:<6}{held:>12}{memory / _GIB:>13.2f}{share}  {verdict}"
    yield ""
    yield f"rank {plan.rank}"


def _memory_lines(memory: ProgramMemory, lines: list[str], available: float) -> Iterator[str]:
    yield f"{'memory of this rank at its peak':<42} GiB"
    for kind in KINDS:
        yield f"  {kind:<36} {memory.by_kind.get(kind, 0) / _GIB:>8.2f}"
    yield f"  {'CUDA, NCCL, unused blocks (estimated)':<36}{memory.unused / _GIB:>8.2f}"
    verdict = fit_warning(memory.total, available) or "fits"
    yield f"  {'total':<36} {memory.total / _GIB:>8.2f} of {available / _GIB:.1f}: {verdict}"
    yield "lines that hold most of it"
    for (line, kind), size in _largest(memory.by_line)[:_MOST_LINES]:
        yield f"  {size / _GIB:>8.2f}  {lines[line]}  {kind}"


def _time_lines(time: ProgramTime, lines: list[str]) -> Iterator[str]:
    yield f"{'time of the step':<42}   s"
    for name, words in _CAUSES.items():
        if name == "waiting" and not time.waiting:
            continue
        yield f"  {words:<36} {getattr(time, name):>8.4f}"
    yield f"  {'total':<36} {time.total:>8.4f}"
    for (size, stride), group in time.groups.items():
        kinds = ", ".join(f"{number} {kind}" for kind, number in group.kinds.items())
        hidden = max(0.0, 1 - group.exposed / group.seconds) if group.seconds else 0.0
        yield (
            f"  {count(size, 'rank')}, {stride} apart: {kinds}; {format_bytes(group.num_bytes)}, "
            f"{group.seconds:.4f} s, {100 * hidden:.0f} % overlapped"
        )
    yield "lines that take most of it"
    for line, seconds in _largest(time.by_line)[:_MOST_LINES]:
        yield f"  {seconds:>8.4f}  {lines[line]}"


def _largest(by_line: Mapping[_Key, float]) -> list[tuple[_Key, float]]:
    return sorted(by_line.items(), key=lambda item: -item[1])


def _notes(plan: ProgramPlan) -> Iterator[str]:
    facts = plan.facts
    if len(plan.of_rank) == 1:
        yield f"other ranks: rank {plan.rank} stands for all {plan.num_gpus}; --rank N plans another one"
    else:
        ranks = ", ".join(map(str, sorted(plan.of_rank)))
        yield f"other ranks: ranks {ranks} stand for all {plan.num_gpus}; --rank N plans another one's"
    yield "loading of data, and whatever the program does outside of torch; no measured range belongs to these times"
    if facts["clock_readings"]:
        read = f"it read the planned time {facts['clock_readings']} x from `time` and CUDA events"
        yield f"the program's own clock: {read}, so the speeds that it prints are simulated"
        if any(shared_groups(plan.of_rank).values()):
            yield "that clock waits for messages, but not for other ranks in a collective: it may print a shorter step"
    for line, (what, number) in facts["answered"].items():
        yield f"{line}: {what} answered by a constant, {number} x"
    for name, number in facts["no_rule"].items():
        yield f"{name}: {number} x, counted as memory-bound"
    if "torch.compile" in facts["notes"]:
        yield "torch.compile: skipped; the time is that of separate kernels, with matrices padded as Inductor's"
    if "torch.save" in facts["notes"]:
        yield "torch.save: wrote nothing"
    if plan.time.num_float32:
        exact = "" if facts["allow_tf32"] else "; the program does not allow TF32, so they will take longer"
        yield f"{count(plan.time.num_float32, 'product')} in float32: at the rate of TF32, half of bfloat16's{exact}"


def program_json(plan: ProgramPlan) -> str:
    """Return the plan as JSON, in bytes and seconds."""
    facts = plan.facts
    memory, time = plan.memory, plan.time
    content = {
        "program": plan.program,
        "num_gpus": plan.num_gpus,
        "rank": plan.rank,
        "step": facts["steps"],
        "parameters": facts["parameters"],
        "rank_parameters": facts["rank_parameters"],
        "memory": {
            "allocated": memory.allocated,
            "unused": memory.unused,
            "total": memory.total,
            "available": plan.cluster.gpu.memory,
            "by_kind": {kind: memory.by_kind.get(kind, 0) for kind in KINDS},
            "by_line": [
                {"line": facts["lines"][line], "kind": kind, "bytes": size}
                for (line, kind), size in _largest(memory.by_line)
            ],
        },
        "ranks": [
            {
                "rank": rank,
                "parameters": plan.of_rank[rank]["rank_parameters"],
                "memory": plan.memories[rank].total,
                "time": {name: getattr(spent, name) for name in (*_CAUSES, "total")},
            }
            for rank, spent in plan.times.items()
        ],
        "time": {name: getattr(time, name) for name in (*_CAUSES, "total")},
        "groups": [
            {
                "ranks": size,
                "stride": stride,
                "kinds": dict(group.kinds),
                "bytes": group.num_bytes,
                "seconds": group.seconds,
                "exposed": group.exposed,
            }
            for (size, stride), group in time.groups.items()
        ],
        "time_by_line": [
            {"line": facts["lines"][line], "seconds": seconds} for line, seconds in _largest(time.by_line)
        ],
        "model_flops": plan.model_flops,
        "mfu": plan.mfu,
        "tokens": plan.tokens,
        "not_seen": list(_notes(plan)),
    }
    return json.dumps(content, indent=2)
