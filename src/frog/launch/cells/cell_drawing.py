"""A picture of a cell's collectives: a lane per rank, and for each collective who came when and who waited."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from frog.core.units import format_bytes
from frog.launch.cells.cell_text import STYLE, color_of, time_text
from frog.launch.cells.cell_world import CellResult
from frog.launch.cells.messages import Call

_MOST_DRAWN, _MOST_LISTED = 60, 12
"""Most collectives in a picture, and in the open list below it."""
_LANE, _TOP, _LEFT, _WIDTH = 34, 26, 62, 860


@dataclass(frozen=True)
class Meeting:
    """A collective, or a message, with the call of each rank that entered it."""

    op: str
    label: str
    """Operation and size."""
    calls: Mapping[int, Call]
    missing: tuple[int, ...]
    """Members that never entered it."""
    start_ns: int
    end_ns: int

    @property
    def last_ns(self) -> int:
        """When the last rank entered it."""
        return max(call.start_ns for call in self.calls.values())

    def waited_ns(self, rank: int) -> int:
        """Return how long a rank waited for the last one; until the end if one never came."""
        until = self.end_ns if self.missing else self.last_ns
        return until - self.calls[rank].start_ns

    @property
    def line(self) -> str:
        """The line of the cell that entered it; empty if unknown, as inside a backward pass."""
        return next((call.line for call in self.calls.values() if call.line), "")


def meetings_of(result: CellResult) -> list[Meeting]:
    """Match the calls of the ranks: the same group and number of a collective; a message with both its ends."""
    together: dict[tuple[str, str, int, str], dict[int, Call]] = {}
    for rank, own in sorted(result.ranks.items()):
        numbers: dict[str, int] = {}
        for call in own.answer.calls if own.answer is not None else ():
            if call.p2p:
                sends = call.op.endswith("send")
                channel = f"{rank} to {call.peer}" if sends else f"{call.peer} to {rank}"
                key = f"{channel} {'send' if sends else 'recv'}"
                numbers[key] = numbers.get(key, 0) + 1
                together.setdefault((call.group, channel, numbers[key], ""), {})[rank] = call
            else:
                together.setdefault((call.group, "", call.seq, call.op), {})[rank] = call
    times = [call.end_ns or call.start_ns for own in result.ranks.values() if own.answer for call in own.answer.calls]
    limit = max(times, default=0)
    meetings = [_meeting(channel, calls, result, limit) for (_, channel, _, _), calls in together.items()]
    return sorted(meetings, key=lambda meeting: meeting.start_ns)


def _meeting(channel: str, calls: dict[int, Call], result: CellResult, limit_ns: int) -> Meeting:
    some = next(iter(calls.values()))
    if some.p2p:
        members = [int(end) for end in channel.split(" to ") if end.isdigit()]
        op = f"{channel}"
    else:
        members = some.members or list(range(result.world_size))
        op = some.op
    missing = tuple(rank for rank in members if rank not in calls)
    start = min(call.start_ns for call in calls.values())
    last = max(call.start_ns for call in calls.values())
    returned = [call.end_ns for call in calls.values() if call.end_ns is not None]
    end = max([last, *returned]) if not missing else max([last, limit_ns, *returned])
    size = max(call.payload_bytes for call in calls.values())
    kind = "message " if some.p2p else ""
    return Meeting(op, f"{kind}{op}" + (f", {format_bytes(size)}" if size else ""), calls, missing, start, end)


def describe(meeting: Meeting) -> str:
    """Say who waited how long in a collective."""
    where = f" at {meeting.line}" if meeting.line else ""
    head = f"{meeting.label}{where}"
    if meeting.missing:
        waited = max(meeting.waited_ns(rank) for rank in meeting.calls)
        how_long = f" {time_text(waited)}" if waited else ""
        return f"{head}: {_ranks(sorted(meeting.calls))} waited{how_long}; {_ranks(meeting.missing)} never entered it"
    waits = {rank: meeting.waited_ns(rank) for rank, call in meeting.calls.items() if call.blocks}
    longest = max(waits, key=lambda rank: waits[rank], default=None)
    last = max(meeting.calls, key=lambda rank: meeting.calls[rank].start_ns)
    whole = f"{head}: {time_text(meeting.end_ns - meeting.start_ns)}"
    if longest is None or waits[longest] < 1e6:
        return whole
    return f"{whole}; rank {longest} waited {time_text(waits[longest])} for rank {last}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if ranks[1:] else ''} {', '.join(map(str, ranks))}"


def as_text(result: CellResult) -> str:
    """Return the collectives as lines: when each rank entered it, and who waited."""
    meetings = meetings_of(result)
    if not meetings:
        return f"cell {result.number} had no collective"
    start = min(meeting.start_ns for meeting in meetings)
    lines = [f"cell {result.number}: collectives in order; for each rank, when it entered"]
    for meeting in meetings[:_MOST_DRAWN]:
        lines.append(f"  {describe(meeting)}")
        came = [f"rank {rank} +{time_text(call.start_ns - start)}" for rank, call in sorted(meeting.calls.items())]
        lines.append(f"      {', '.join([*came, *(f'rank {rank} never' for rank in meeting.missing)])}")
    return "\n".join([*lines, *_more(meetings)])


def _more(meetings: Sequence[Meeting]) -> list[str]:
    return [f"  and {len(meetings) - _MOST_DRAWN} more"] if len(meetings) > _MOST_DRAWN else []


def as_svg(result: CellResult) -> str:
    """Return the collectives as an SVG picture in HTML, which uses the page's text color.

    A pale bar is the time in which a rank waited for the others, a full one the exchange itself.
    """
    meetings = meetings_of(result)[:_MOST_DRAWN]
    if not meetings:
        return f"<p>cell {result.number} had no collective</p>"
    start, end = min(m.start_ns for m in meetings), max(m.end_ns for m in meetings)
    span = max(1, end - start)
    base = _TOP + _LANE * result.world_size

    def x(at_ns: int) -> float:
        return _LEFT + (at_ns - start) / span * (_WIDTH - _LEFT - 12)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {base + 34}" width="100%" style="max-width:{_WIDTH}px;min-width:560px" role="img" '
        f'aria-label="Collectives of cell {result.number} by rank and time" font-family="system-ui,sans-serif" '
        'font-size="12" fill="currentColor">',
        *_lanes_svg(result.world_size),
        *_meetings_svg(meetings, x),
        *_ticks_svg(span, base, lambda tick_ns: x(start + tick_ns)),
    ]
    legend = "pale: waiting for the others; full: the exchange; dashed: never ended"
    return (
        f'{STYLE}<div class="frog-ranks"><div style="overflow-x:auto;font-family:system-ui,sans-serif;font-size:13px">'
        f"{''.join(parts)}</svg></div>"
        f'<div style="font-family:system-ui,sans-serif;font-size:13px;opacity:.85">{legend}</div>'
        f"{_list_html(meetings)}</div>"
    )


def _lanes_svg(world_size: int) -> list[str]:
    parts = []
    for rank in range(world_size):
        middle = _TOP + _LANE * rank + _LANE / 2
        parts.append(f'<text x="4" y="{middle + 4:.0f}">rank {rank}</text>')
        parts.append(
            f'<line x1="{_LEFT}" y1="{middle}" x2="{_WIDTH - 12}" y2="{middle}" stroke="currentColor" '
            'stroke-opacity=".25"/>'
        )
    return parts


def _meetings_svg(meetings: Sequence[Meeting], x: Callable[[int], float]) -> list[str]:
    """Draw the bars of each collective, and its number and name above where these have room."""
    parts: list[str] = []
    free_x = 0.0
    for number, meeting in enumerate(meetings, start=1):
        said = f"{number}. {meeting.label}"
        at = x(meeting.start_ns)
        if at >= free_x:
            parts.append(f'<text x="{min(at, _WIDTH - 12 - 6.4 * len(said)):.1f}" y="15">{html.escape(said)}</text>')
            free_x = min(at, _WIDTH - 12 - 6.4 * len(said)) + 6.4 * len(said) + 10
        parts.append(f"<g><title>{html.escape(f'{number}. {describe(meeting)}')}</title>")
        parts += _bars(meeting, x)
        parts.append("</g>")
    return parts


def _ticks_svg(span_ns: int, base: int, x: Callable[[int], float]) -> list[str]:
    """Draw the times below the lanes. x: the place of a time since the first collective began."""
    parts = []
    for tick_ns in _ticks(span_ns):
        place = x(tick_ns)
        anchor = "end" if place > _WIDTH - 40 else "middle"
        if tick_ns == 0:
            anchor = "start"
        said = time_text(tick_ns).replace(".0 ", " ") if tick_ns else "0"
        parts.append(f'<text x="{place:.1f}" y="{base + 18}" text-anchor="{anchor}" opacity=".8">{said}</text>')
        parts.append(
            f'<line x1="{place:.1f}" y1="{base}" x2="{place:.1f}" y2="{base + 5}" stroke="currentColor" '
            'stroke-opacity=".5"/>'
        )
    return parts


def _list_html(meetings: Sequence[Meeting]) -> str:
    """Return the collectives in order; closed at first if there are many."""
    items = "".join(f"<li>{html.escape(describe(meeting))}</li>" for meeting in meetings)
    listed = (
        f'<ol style="font-family:system-ui,sans-serif;font-size:13px;margin:6px 0 0;padding-left:28px">{items}</ol>'
    )
    if len(meetings) > _MOST_LISTED:
        closed = f'<summary style="cursor:pointer">the {len(meetings)} in order, with their times</summary>'
        return f'<details style="font-family:system-ui,sans-serif;font-size:13px">{closed}{listed}</details>'
    return listed


def _ticks(span_ns: int) -> list[int]:
    """Return four to nine round times from 0 to a span."""
    exact = span_ns / 5
    unit = 10 ** math.floor(math.log10(max(exact, 1)))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= exact / 1.5)
    return list(range(0, span_ns + 1, int(step)))


def _bars(meeting: Meeting, x: Callable[[int], float]) -> list[str]:
    parts = []
    for rank, call in meeting.calls.items():
        top = _TOP + _LANE * rank + 7
        begins, meets = x(call.start_ns), x(meeting.end_ns if meeting.missing else meeting.last_ns)
        ends = x(meeting.end_ns if call.end_ns is None else max(call.end_ns, meeting.last_ns))
        color = color_of(rank)
        dash = ' stroke-dasharray="4 3"' if meeting.missing else ""
        parts.append(
            f'<rect x="{begins:.1f}" y="{top}" width="{max(1.0, meets - begins):.1f}" height="{_LANE - 14}" '
            f'style="fill:{color};stroke:{color}" fill-opacity=".28"{dash}/>'
        )
        if not meeting.missing:
            parts.append(
                f'<rect x="{meets:.1f}" y="{top}" width="{max(2.0, ends - meets):.1f}" height="{_LANE - 14}" '
                f'style="fill:{color}"/>'
            )
    entered = [_TOP + _LANE * rank + _LANE / 2 for rank in meeting.calls]
    if len(entered) > 1 and not meeting.missing:
        place = x(meeting.last_ns)
        parts.append(
            f'<line x1="{place:.1f}" y1="{min(entered)}" x2="{place:.1f}" y2="{max(entered)}" stroke="currentColor" '
            'stroke-width="1.2"/>'
        )
    for rank in meeting.missing:
        middle = _TOP + _LANE * rank + _LANE / 2
        parts.append(f'<text x="{x(meeting.start_ns):.1f}" y="{middle - 4:.0f}" opacity=".8">never entered it</text>')
    return parts
