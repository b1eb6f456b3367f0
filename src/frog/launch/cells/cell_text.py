"""The result of a cell for people, as text and as HTML: output by rank, where ranks that did the same share a place."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from frog.core.units import count
from frog.launch.cells.cell_world import CellResult, CellWorld, Outputs, RankResult

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LOST_PEER = re.compile(r"Connection (closed|reset) by peer|Read error|Failed to recv|Broken pipe|Connection refused")
COLORS = (
    ("#0072b2", "#4ea8e0"),
    ("#d55e00", "#f08a45"),
    ("#009e73", "#3cc39b"),
    ("#b8559a", "#e08bc0"),
    ("#a67c00", "#e0b83c"),
    ("#5b4bb5", "#9f93ee"),
    ("#4b8f29", "#8bcf62"),
    ("#8a4b2a", "#c98a65"),
)
"""A color for each rank in a light and in a dark notebook, then from the beginning again: those of reports."""
_DARK = (
    "[data-jp-theme-light=false]",  # JupyterLab, Notebook
    "body.vscode-dark",
    "body.vscode-high-contrast:not(.vscode-high-contrast-light)",
    "html[theme=dark]",  # Colab
)
"""How a dark notebook marks its page. The system's preferred scheme is not that of the notebook."""


@dataclass
class Group:
    """Ranks that did the same."""

    ranks: list[int]
    output: str
    value: str | None
    error: list[str] = field(default_factory=list)
    state: str = "done"


def rank_names(ranks: Sequence[int]) -> str:
    """Name ranks: `rank 1`, `ranks 0-3`, `ranks 0, 2`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}\u2013{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def groups_of(result: CellResult) -> list[Group]:
    """Return the results of a cell, folded: ranks with equal output, value and error share a group."""
    groups: dict[str, Group] = {}
    for rank, own in sorted(result.ranks.items()):
        error = _error_lines(own, result)
        value = own.answer.value if own.answer is not None else None
        digests = [fact.digest for fact in own.answer.tensors] if own.answer is not None else []
        output = plain(own.output)
        key = repr((output, value, error, own.state, digests))
        if key in groups:
            groups[key].ranks.append(rank)
        else:
            groups[key] = Group([rank], output, value, error, own.state)
    return list(groups.values())


def plain(text: str) -> str:
    """Return output as a terminal would leave it: without colors, and with the last state of a progress bar."""
    lines = _ANSI.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).rstrip("\n")


def _error_lines(own: RankResult, result: CellResult) -> list[str]:
    """Return the lines about the end of a rank's cell; empty if it completed."""
    error = own.answer.error if own.answer is not None else None
    if own.state == "died":
        return ["ended during the cell"]
    if error is None:
        return ["did not react, and was ended"] if own.state != "done" else []
    if own.state == "hung":
        return [*error.lines, "ended by Frog: this call waited, and no rank moved data"]
    if error.is_interrupt or own.state == "interrupted":
        return [*error.lines, "KeyboardInterrupt"]
    died = any(other.state == "died" for other in result.ranks.values())
    if died and _LOST_PEER.search(error.message):
        return [*error.lines, "lost its peers"]
    first = f"{error.type}: {error.message}" if error.message else error.type
    return [*error.lines, *first.splitlines()]


def agreements(result: CellResult) -> list[str]:
    """Say of each tensor in the cell's value whether the ranks hold the same one."""
    answers = {rank: own.answer for rank, own in result.ranks.items() if own.answer is not None and own.state == "done"}
    if len(answers) < 2:
        return []
    by_place: dict[str, dict[int, str | None]] = {}
    for rank, answer in sorted(answers.items()):
        for fact in answer.tensors:
            by_place.setdefault(fact.place, {})[rank] = fact.digest
    places: dict[str, list[str]] = {}
    for place, by_rank in by_place.items():
        if by_rank.keys() == answers.keys():
            places.setdefault(_agreement(by_rank, result.world_size), []).append(place.strip())
    return [f"{', '.join(own)}: {said}" if any(own) else said for said, own in places.items()]


def _agreement(by_rank: Mapping[int, str | None], world_size: int) -> str:
    """Say whether ranks hold the same tensor. by_rank: its digest on each."""
    if None in by_rank.values():
        return "not compared between ranks"
    same: dict[str, list[int]] = {}
    for rank, digest in by_rank.items():
        same.setdefault(str(digest), []).append(rank)
    if len(same) == 1:
        return f"equal on {'all ranks' if len(by_rank) == world_size else rank_names(sorted(by_rank))}"
    if len(same) == len(by_rank):
        return "different on each rank"
    return f"different: {' | '.join(rank_names(ranks) for ranks in same.values())}"


def summary(result: CellResult) -> str:
    """Return one line on how long the cell took and how many collectives it had."""
    calls = max((len(own.answer.calls) for own in result.ranks.values() if own.answer is not None), default=0)
    return " · ".join([time_text(1e9 * result.duration_s), *([count(calls, "collective")] if calls else [])])


def time_text(duration_ns: float) -> str:
    """Return a duration with a unit that fits: 40 µs, 1.2 ms, 3.0 s."""
    if duration_ns < 1e6:
        return f"{duration_ns / 1e3:.0f} µs"
    return f"{duration_ns / 1e6:.1f} ms" if duration_ns < 1e9 else f"{duration_ns / 1e9:.1f} s"


def world_text(world: CellWorld) -> str:
    """Describe a world: its ranks, their processes, and the variables that they hold."""
    lines = [f"world of {world.settings}, device {world.device}"]
    lines += [f"  rank {rank}: process {pid}" for rank, pid in sorted(world.pids.items())]
    by_names: dict[tuple[str, ...], list[int]] = {}
    for rank, names in sorted(world.names.items()):
        by_names.setdefault(tuple(names), []).append(rank)
    for own, ranks in by_names.items():
        lines.append(f"  variables of {rank_names(ranks)}: {', '.join(own) or 'none'}")
    return "\n".join(lines)


# ---- text ------------------------------------------------------------------------------------------------------------


def as_text(result: CellResult, *, fold_name: bool = False) -> str:
    """Return the result as lines that begin with their ranks. fold_name: omit the name if all ranks did the same."""
    groups = groups_of(result)
    width = max((len(rank_names(group.ranks)) for group in groups), default=0)
    lines: list[str] = []
    for group in groups:
        own = [line for part in (group.output, group.value) if part for line in part.split("\n")]
        own += group.error
        if fold_name and len(groups) == 1 and len(group.ranks) == result.world_size and not group.error:
            lines += own
        else:
            lines += [f"{rank_names(group.ranks):<{width}} │ {line}".rstrip() for line in own]
    lines += agreements(result)
    if result.hang:
        lines += result.hang.splitlines()
    return "\n".join([*lines, *result.notes])


def live_text(outputs: Outputs, status: str = "") -> str:
    """Return the output of a running cell as text. status: what the world does, if not the cell."""
    lines = [f"rank {rank} │ {line}" for rank, text in outputs.items() if text for line in plain(text).splitlines()]
    return "\n".join([*lines, *([status] if status else [])])


# ---- HTML ------------------------------------------------------------------------------------------------------------


def _rank_colors(scheme: int) -> str:
    return ";".join(f"--frog-rank-{rank}:{pair[scheme]}" for rank, pair in enumerate(COLORS))


STYLE = f"""<style>
.frog-ranks{{{_rank_colors(0)}}}
{",".join(f"{mark} .frog-ranks" for mark in _DARK)}{{{_rank_colors(1)}}}"""
STYLE += """
.frog-ranks{font-family:var(--jp-code-font-family,var(--vscode-editor-font-family,ui-monospace,Menlo,Consolas,monospace));
font-size:13px;line-height:1.45;margin:2px 0}
.frog-ranks .frog-row{display:flex;flex-wrap:wrap;gap:8px;min-width:0;max-width:100%}
.frog-ranks .frog-card{min-width:0;max-width:100%;box-sizing:border-box;
border:1px solid rgba(128,128,128,.4);border-radius:5px;
border-left-width:4px;overflow:hidden}
.frog-ranks .frog-name{padding:2px 8px;font-weight:600;background:rgba(128,128,128,.12)}
.frog-ranks .frog-name .frog-dot{display:inline-block;width:9px;height:9px;border-radius:50%;margin-right:4px}
.frog-ranks.frog-ranks pre{margin:0;padding:5px 8px;white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal;
background:transparent;color:inherit;font:inherit;border:0}
.frog-ranks .frog-end,.frog-ranks.frog-ranks pre.frog-value{max-height:26em;overflow-y:auto}
.frog-ranks .frog-end{display:flex;flex-direction:column-reverse}
.frog-ranks.frog-ranks .frog-end pre{flex:none;overflow:visible}
.frog-ranks.frog-ranks .frog-end+pre.frog-value{border-top:1px dashed rgba(128,128,128,.4)}
.frog-ranks.frog-ranks pre.frog-error{border-left:3px solid #d1383d;margin:4px 8px 6px;padding:3px 8px;
background:rgba(209,56,61,.1)}
.frog-ranks .frog-line{padding:4px 2px 0;opacity:.85}
.frog-ranks.frog-ranks pre.frog-hang{border-left:3px solid #c98a00;margin:8px 0 0;background:rgba(201,138,0,.12)}
</style>"""
"""Notebooks style `pre` in an output themselves: the class named twice is stronger than their rule. A box `frog-end` is
scrolled to its end, where a running cell writes."""
_NARROWEST, _WIDEST = 22, 48
"""Width of a card in characters, from its longest line: as many stand side by side as fit."""
_MOST_LIVE = 4000
"""Most characters of a rank's output that are sent to the notebook again and again while the cell runs."""


def as_html(result: CellResult) -> str:
    """Return the result as HTML: a card per group of ranks, side by side, in light and dark notebooks."""
    groups = groups_of(result)
    width = _card_width([part or "" for group in groups for part in (group.output, group.value, *group.error)])
    cards = [_card(group.ranks, group.output, group.value, group.error, result.world_size, width) for group in groups]
    lines = [*agreements(result), *result.notes, summary(result)]
    below = "".join(f'<div class="frog-line">{html.escape(line)}</div>' for line in lines)
    hang = f'<pre class="frog-hang">{html.escape(result.hang)}</pre>' if result.hang else ""
    return f'{STYLE}<div class="frog-ranks">{_row(cards, width)}{hang}{below}</div>'


def live_html(outputs: Outputs, world_size: int, status: str = "") -> str:
    """Return the output of a running cell as HTML: its end. status: what the world does, if not the cell."""
    ends = {rank: plain(text[-_MOST_LIVE:]) for rank, text in outputs.items()}
    width = _card_width(list(ends.values()))
    cards = [_card([rank], text, None, [], world_size, width) for rank, text in ends.items()]
    below = f'<div class="frog-line">{html.escape(status)}</div>' if status else ""
    return f'{STYLE}<div class="frog-ranks">{_row(cards, width) if cards else ""}{below}</div>'


def _card_width(texts: Sequence[str]) -> int:
    longest = max((len(line) for text in texts for line in text.split("\n")), default=0)
    return min(max(longest + 4, _NARROWEST), _WIDEST)


def _row(cards: Sequence[str], width: int) -> str:
    """Return cards side by side. In halves: four that do not fit make two rows of two, not of three and one."""
    half = len(cards) // 2
    is_halved = len(cards) > 2 and len(cards) % 2 == 0
    inner = f"{_row(cards[:half], width)}{_row(cards[half:], width)}" if is_halved else "".join(cards)
    basis = len(cards) * width
    return f'<div class="frog-row" style="flex:1 1 {basis}ch">{inner}</div>'


def _card(
    ranks: Sequence[int], output: str, value: str | None, error: Sequence[str], world_size: int, width: int
) -> str:
    dots = "".join(f'<span class="frog-dot" style="background:{color_of(rank)}"></span>' for rank in ranks[:8])
    parts = [f'<div class="frog-end"><pre>{html.escape(output)}</pre></div>'] if output else []
    parts += [f'<pre class="frog-value">{html.escape(value)}</pre>'] if value is not None else []
    parts += [f'<pre class="frog-error">{html.escape(chr(10).join(error))}</pre>'] if error else []
    parts = parts or ['<pre style="opacity:.75">no output</pre>']
    name = "all ranks" if len(ranks) == world_size > 1 else ""
    title = f"{rank_names(ranks)}{f' ({name})' if name else ''}"
    edge = color_of(ranks[0]) if len(ranks) == 1 else "rgba(128,128,128,.6)"
    head = f'<div class="frog-name">{dots}{html.escape(title)}</div>'
    return f'<div class="frog-card" style="border-left-color:{edge};flex:1 1 {width}ch">{head}{"".join(parts)}</div>'


def color_of(rank: int) -> str:
    """Return a rank's color for CSS; in a page that drops styles, that of a light one."""
    number = rank % len(COLORS)
    return f"var(--frog-rank-{number},{COLORS[number][0]})"
