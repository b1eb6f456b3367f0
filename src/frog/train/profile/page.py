"""The summary page of a profile, as Markdown that is also readable in a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from frog.core.config import from_dict
from frog.core.units import format_bytes
from frog.train.profile.numbers import (
    ALONE,
    EXPOSED,
    IDLE,
    KERNELS,
    OPERATORS,
    PYTHON,
    TRANSFER,
    WAITING,
    Profile,
    RankProfile,
)
from frog.train.profile.trace import OperatorCall

_TOP = 10
_PRODUCTS = 6
_MEMORY = ("parameters", "gradients", "optimizer", "activations")

Key = TypeVar("Key", bound=Hashable)

_WORDS = {
    OPERATORS: "a torch operator computes",
    TRANSFER: "the rank is blocked in a collective that all its ranks have entered",
    WAITING: "blocked because another rank has not entered the collective yet: idle time",
    EXPOSED: "no operator runs while a collective is in progress (for native strategies only this is known)",
    PYTHON: "none of the above: the loop, hooks, and the engine between operators",
    KERNELS: "the GPU computes",
    ALONE: "the GPU only communicates",
    IDLE: "the GPU does neither, and waits for Python or for other ranks",
}
"""Explanations of the parts of a step."""


def profile_page(profile: Profile) -> str:
    """The summary."""
    sections = [
        _head(profile),
        "\n".join(f"- {sentence}" for sentence in _findings(profile)),
        _time(profile),
        _communication(profile),
        _operators(profile),
        _products(profile),
        _memory(profile),
        f"For details open {profile.folder.profile}/trace.json.gz (all ranks) or rank_N.trace.json in "
        "https://ui.perfetto.dev or chrome://tracing.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(profile: Profile) -> str:
    config, ranks = from_dict(profile.folder.read_run_json().config), profile.ranks
    strategy = config.strategy
    sizes = {"dp": strategy.dp_size(len(ranks)), "pp": strategy.pp, "cp": strategy.cp, "tp": strategy.tp}
    axes = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
    plain, slow = (max(getattr(rank, name) for rank in ranks) / 1e3 for name in ("plain_us", "slow_us"))
    num_steps, more = ranks[0].num_steps, max(rank.profiler_bytes for rank in ranks)
    return (
        f"# Profile of {profile.folder.path}\n\n"
        f"{len(ranks)} rank{'s' if len(ranks) > 1 else ''}{f': {axes}' if axes else ''}; strategy "
        f"{strategy.entry.name} from {strategy.implementation}, {config.train.precision}; "
        f"{config.explain_batch(len(ranks))}.\n"
        f"A step took {plain:.1f} ms without the profiler and {slow:.1f} ms with it (medians of {num_steps} "
        f"step{'s' if num_steps > 1 else ''} each). Recording slows a step, Python more than operators: read "
        f"fractions rather than times. It raised peak memory by {format_bytes(more)} per rank."
    )


def _findings(profile: Profile) -> list[str]:
    """Summarize the main findings in a few sentences."""
    ranks = profile.ranks
    step_us = statistics.mean(rank.step_us for rank in ranks)
    fractions = {name: statistics.mean(rank.parts[name] for rank in ranks) / step_us for name in ranks[0].parts}
    largest = max(fractions, key=lambda name: fractions[name])
    findings = [f"The largest part of a step is {largest}: {fractions[largest]:.0%}, over all ranks."]
    if fractions.get(WAITING, 0.0) >= 0.1:
        among = (
            _who_is_late(ranks) if profile.run.setting("strategy", "pp") == 1 else ", including the pipeline's bubble"
        )
        findings.append(f"{fractions[WAITING]:.0%} is waiting for other ranks{among}.")
    if fractions.get(EXPOSED, 0.0) >= 0.2:
        findings.append(f"{fractions[EXPOSED]:.0%} is communication that nothing overlaps.")
    if fractions.get(PYTHON, 0.0) >= 0.35 or fractions.get(IDLE, 0.0) >= 0.35:
        findings.append(
            "Much of the time is Python that calls operators; larger micro-batches need less of it per token."
        )
    return findings


def _who_is_late(ranks: Sequence[RankProfile]) -> str:
    """Name the rank that arrives last: it waits least itself."""
    waits = sorted((rank.parts[WAITING], rank.rank) for rank in ranks)
    one_is_late = len(waits) > 1 and waits[0][0] < 0.4 * waits[1][0]
    return f": rank {waits[0][1]} arrives last and hardly waits itself" if one_is_late else ", with no rank always last"


def _time(profile: Profile) -> str:
    ranks = profile.ranks
    names = [name for name in ranks[0].parts if any(rank.parts[name] for rank in ranks)]
    phases = list(ranks[0].phases)
    parts = [
        [str(r.rank), _ms(r.step_us), *(f"{_ms(r.parts[name])} {r.parts[name] / r.step_us:4.0%}" for name in names)]
        for r in ranks
    ]
    spans = [[str(r.rank), *(_ms(r.phases[phase]) for phase in phases)] for r in ranks]
    words = "; ".join(f"*{name}*: {_WORDS[name]}" for name in names)
    return (
        f"## Where a step goes (ms)\n\n{_table(['rank', 'step', *names], parts)}\n\n{words}.\n\n"
        f"By phase:\n\n{_table(['rank', *phases], spans)}"
    )


def _communication(profile: Profile) -> str:
    rows = [
        [
            str(rank.rank),
            _count(sent.num_collectives),
            _ms(sent.under_way_us),
            _ms(sent.blocked_us),
            f"{sent.blocked_us / rank.step_us:.0%}",
            "-" if sent.overlap is None else f"{sent.overlap:.0%}",
        ]
        for rank in profile.ranks
        if (sent := rank.communication) is not None
    ]
    head = ["rank", "collectives a step", "under way", "blocked", "fraction of step", "overlap"]
    note = "Overlap: the fraction of a collective's time that did not block the rank."
    return f"## Communication (ms per step)\n\n{_table(head, rows)}\n\n{note}" if rows else ""


def _operators(profile: Profile) -> str:
    """Format operators by self time, mean of all ranks."""
    calls = _group(profile, lambda call: call.name if call.is_work else None)
    step_us = sum(rank.step_us * rank.num_steps for rank in profile.ranks)
    num = sum(rank.num_steps for rank in profile.ranks)
    rows = []
    for name, group in sorted(calls.items(), key=lambda item: -sum(call.self_us for call in item[1]))[:_TOP]:
        self_us = sum(call.self_us for call in group)
        rows.append(
            [name.removeprefix("aten::"), _count(len(group) / num), _ms(self_us / num), f"{self_us / step_us:.1%}"]
        )
    table = _table(["operator", "calls a step", "self ms per step", "fraction of step"], rows)
    return f"## Top operators by self time\n\n{table}"


def _products(profile: Profile) -> str:
    groups = _group(profile, lambda call: (call.name, call.shapes, call.dtype) if call.is_product else None)
    num = sum(rank.num_steps for rank in profile.ranks)
    rows = []
    for (name, _, dtype), group in sorted(groups.items(), key=lambda item: -sum(call.whole_us for call in item[1]))[
        :_PRODUCTS
    ]:
        us = sum(call.whole_us for call in group)
        words = " and ".join("x".join(map(str, shape)) for shape in group[0].matrices)
        rate = f"{sum(call.flops for call in group) / us / 1e3:.1f}" if us else "-"
        rows.append([name.removeprefix("aten::"), words, dtype, _count(len(group) / num), _ms(us / num), rate])
    head = ["product", "shapes", "type", "calls a step", "ms a step", "GFLOP/s"]
    return f"## Most expensive matrix products\n\n{_table(head, rows)}" if rows else ""


def _memory(profile: Profile) -> str:
    rows = []
    for rank in profile.ranks:
        sizes = [format_bytes(getattr(rank.memory, part)) if rank.memory else "-" for part in _MEMORY]
        rows.append([str(rank.rank), *sizes, format_bytes(rank.peak_bytes)])
    peak = "peak of tensors" if IDLE in profile.ranks[0].parts else "peak of the process"
    return f"## Memory\n\n{_table(['rank', *_MEMORY, peak], rows)}"


def _group(profile: Profile, key: Callable[[OperatorCall], Key | None]) -> dict[Key, list[OperatorCall]]:
    """Group all ranks' calls by a key; omit those without one."""
    groups: dict[Key, list[OperatorCall]] = {}
    for rank in profile.ranks:
        for call in rank.calls:
            if (name := key(call)) is not None:
                groups.setdefault(name, []).append(call)
    return groups


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f}"


def _count(number: float) -> str:
    return f"{number:.0f}" if number == round(number) else f"{number:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with aligned columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    right = [all(row[i][:1].isdigit() or row[i] == "-" for row in rows) for i in range(len(head))]
    lines = [head, ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)], *rows]
    return "\n".join(
        "| " + " | ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)) + " |"
        for line in lines
    )
