"""Who waits for whom, drawn as SVG: a box for the ranks that do the same, an arrow to those that they wait for.

Drawn twice, side by side and one below the other, for wide and for narrow screens; the style sheet shows one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from frog.core.terminal import printable
from frog.core.units import span
from frog.observe.diagnose.waits import WaitingGroup

MOST_BOXES = 6
_WIDTH, _HEIGHT, _GAP = 330, 76, 22
_ACROSS, _DOWN = 150, 62
"""Room for an arrow between two boxes, side by side or one below the other."""
_MOST_TEXT = 44


@dataclass(frozen=True)
class Box:
    """A group with its place in the picture."""

    index: int
    x: float
    y: float


def draw_waits(groups: list[WaitingGroup]) -> str:
    """Return the picture as HTML; empty without groups. All text is escaped."""
    if not groups:
        return ""
    shown = _shown(groups)
    alt = escape(waits_text(groups).replace("\n", "; "))
    more = len(groups) - len(shown)
    note = f'<p class="quiet">And {more} more groups of ranks.</p>' if more else ""
    pictures = "".join(_svg(groups, shown, wide, alt) for wide in (True, False))
    return f'<div class="waits">{pictures}{note}</div>'


def waits_text(groups: list[WaitingGroup]) -> str:
    """Return the same as text, a line per group."""
    lines = []
    for group in groups[:MOST_BOXES]:
        at = f" at {group.place}" if group.place else ""
        ranks = [rank for other in group.waits_for for rank in groups[other].ranks]
        verb = "waits" if len(group.ranks) == 1 else "wait"
        waits = f" and {verb} for {span(sorted(ranks))}" if ranks else ""
        what = group.what
        if what.startswith("in "):
            what = f"{'is' if len(group.ranks) == 1 else 'are'} {what}"
        lines.append(printable(f"{span(list(group.ranks))}: {what}{at}{waits}"))
    return "\n".join(lines)


def _shown(groups: list[WaitingGroup]) -> list[int]:
    """Return the groups to draw: those with arrows first."""
    awaited = {other for group in groups for other in group.waits_for}
    ranked = sorted(range(len(groups)), key=lambda at: not (groups[at].waits_for or at in awaited))
    return sorted(ranked[:MOST_BOXES])


def columns(groups: list[WaitingGroup], shown: list[int]) -> tuple[list[int], list[int]]:
    """Divide the groups in those that wait and those that are awaited. Of a cycle, the first one waits."""
    awaited = {other for at in shown for other in groups[at].waits_for}
    waiting = [at for at in shown if groups[at].waits_for and at not in awaited]
    rest = [at for at in shown if at not in waiting]
    if not waiting and rest:
        waiting, rest = rest[: (len(rest) + 1) // 2], rest[(len(rest) + 1) // 2 :]
    return waiting, rest


def _svg(groups: list[WaitingGroup], shown: list[int], wide: bool, alt: str) -> str:
    waiting, rest = columns(groups, shown)
    boxes = _places(waiting, rest, wide)
    width = max(box.x for box in boxes.values()) + _WIDTH + (2 if wide else 30)
    height = max(box.y for box in boxes.values()) + _HEIGHT + 2
    name = "wide" if wide else "tall"
    arrows = [
        _arrow(boxes[at], boxes[other], wide, is_mutual=at in groups[other].waits_for, name=name)
        for at in shown
        for other in groups[at].waits_for
        if other in boxes
    ]
    parts = [_box(groups[at], boxes[at], bool(groups[at].waits_for)) for at in shown]
    return (
        f'<svg class="waits-{name}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" aria-label="{alt}">'
        f'<defs><marker id="tip-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{''.join(arrows)}{''.join(parts)}</svg>"
    )


def _places(waiting: list[int], rest: list[int], wide: bool) -> dict[int, Box]:
    """Return the boxes: those that wait at the left or above, each column centered."""
    if not wide:
        ordered, y = [*waiting, *rest], 1.0
        boxes = {}
        for number, at in enumerate(ordered):
            boxes[at] = Box(at, 1, y)
            y += _HEIGHT + (_DOWN if number == len(waiting) - 1 else _GAP)
        return boxes
    heights = [len(column) * (_HEIGHT + _GAP) - _GAP for column in (waiting, rest)]
    boxes = {}
    for column, x in ((waiting, 1.0), (rest, float(_WIDTH + _ACROSS))):
        y = 1 + (max(heights) - (len(column) * (_HEIGHT + _GAP) - _GAP)) / 2
        for at in column:
            boxes[at] = Box(at, x, y)
            y += _HEIGHT + _GAP
    return boxes


def _box(group: WaitingGroup, box: Box, waits: bool) -> str:
    lines = [
        ("box-ranks", span(list(group.ranks))),
        ("box-what", group.what),
        ("box-place", group.place),
    ]
    texts = "".join(
        f'<text class="{kind}" x="{box.x + 14:g}" y="{box.y + 23 + 20 * row:g}">{escape(_short(text))}</text>'
        for row, (kind, text) in enumerate(lines)
        if text
    )
    name = "box box-waits" if waits else "box"
    return f'<rect class="{name}" x="{box.x:g}" y="{box.y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>{texts}'


def _arrow(start: Box, end: Box, wide: bool, *, is_mutual: bool, name: str) -> str:
    shift = 0
    if is_mutual:
        shift = 9 if start.index < end.index else -9
    label = ""
    if wide and start.x != end.x:
        forward = start.x < end.x
        x1, x2 = (start.x + _WIDTH, end.x - 5) if forward else (start.x, end.x + _WIDTH + 5)
        y1, y2 = start.y + _HEIGHT / 2 + shift, end.y + _HEIGHT / 2 + shift
        path = f"M{x1:g} {y1:g}C{(x1 + x2) / 2:g} {y1:g} {(x1 + x2) / 2:g} {y2:g} {x2:g} {y2:g}"
        if forward:
            label = _label((x1 + x2) / 2, (y1 + y2) / 2 - 8 - 2 * max(0, shift), "middle", is_mutual)
    elif not wide and 0 < end.y - start.y - _HEIGHT <= _DOWN and not is_mutual:
        x = start.x + _WIDTH / 2
        path = f"M{x:g} {start.y + _HEIGHT:g}V{end.y - 5:g}"
        label = _label(x + 10, (start.y + _HEIGHT + end.y) / 2 + 4, "start")
    else:  # around the side
        x = (start.x if wide else 1) + _WIDTH
        y1, y2 = start.y + _HEIGHT / 2 + shift, end.y + _HEIGHT / 2 - shift
        path = f"M{x:g} {y1:g}C{x + 34:g} {y1:g} {x + 34:g} {y2:g} {x + 5:g} {y2:g}"
        if is_mutual and start.index < end.index and not wide:
            label = _label(x - 12, (y1 + y2) / 2 + 4, "end", is_mutual)
    return f'<path class="arrow" d="{path}" marker-end="url(#tip-{name})"/>{label}'


def _label(x: float, y: float, anchor: str, is_mutual: bool = False) -> str:
    text = "wait for each other" if is_mutual else "waits for"
    return f'<text class="arrow-label" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>'


def _short(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _MOST_TEXT else f"{shown[: _MOST_TEXT - 1]}…"
