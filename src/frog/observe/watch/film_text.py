"""A film in the terminal: a table of the ranks at one moment, the numbers, the last events and the diagnosis."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from frog.core.terminal import printable
from frog.core.units import format_count, format_seconds
from frog.observe.view.numbers import format_number
from frog.observe.view.waits_picture import waits_text
from frog.observe.watch.film import Film, Lane
from frog.observe.watch.film_reader import STILL_S, FilmReader

if TYPE_CHECKING:
    from rich.console import RenderableType

    from frog.core.runs.folder import RunFolder

_LOOK_S = 0.5
_MOST_ROWS = 64
_LAST_EVENTS = 4


def show_text(folder: RunFolder) -> int:
    """Show a run in the terminal until it has ended, or one frame if the output is not a terminal.

    Raises:  RunError if run.json cannot be read.
    """
    from rich.live import Live

    from frog.core.console import console

    reader = FilmReader(folder, asks=sys.stdout.isatty())
    film = reader.read()
    if not sys.stdout.isatty():
        reader.renew_diagnosis(film)
        console(width=160).print(frame(film))
        return 0
    with Live(console=console(), auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            reader.renew_diagnosis(film)
            live.update(frame(film), refresh=True)
            if not film.is_live:
                return 0
            time.sleep(_LOOK_S)
            film = reader.read()


def frame(film: Film) -> RenderableType:
    """Return the film's last moment for the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    style = {"running": "cyan", "completed": "green", "ended": "green"}.get(film.status, "red")
    still = f"  no progress for {film.still_s:.0f} s" if film.still_s >= STILL_S else ""
    title = Text.assemble(
        (film.name, "bold"), "  ", (film.status, style), f"  {format_seconds(film.end / 1e6)}", (still, "bold red")
    )
    parts: list[RenderableType] = [title]
    numbers = [f"{line.title.lower()} {_last(line.values)} (step {line.step[-1]:,})" for line in film.series]
    if numbers:
        parts.append(Text(", ".join(numbers)))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("rank", "doing", "collective", "memory", "cores", "state"):
        table.add_column(name, justify="right" if name in ("rank", "memory", "cores") else "left", overflow="fold")
    for lane in film.lanes[:_MOST_ROWS]:
        table.add_row(*(Text(printable(cell)) for cell in row_of(film, lane, film.end)))
    parts.append(table)
    if len(film.lanes) > _MOST_ROWS:
        parts.append(Text(f"and {len(film.lanes) - _MOST_ROWS} more ranks", style="dim"))
    for event in film.events[-_LAST_EVENTS:]:
        who = f"rank {event.rank}: " if event.rank is not None else ""
        at = f"{event.at / 1e6:9.1f} s  "
        parts.append(Text(f"{at}{who}{event.text}", style="red" if event.kind == "failure" else "dim"))
    if film.diagnosis is not None:
        parts += _diagnosis(film)
    return Group(*parts)


def row_of(film: Film, lane: Lane, time_us: int) -> list[str]:
    """Return a rank's cells at a time: what it does, its collective, memory, used cores and state."""
    if not film.is_live and lane.bars:  # its last moment
        time_us = min(time_us, max(lane.bars[-4] + lane.bars[-3], lane.calls[-4] + lane.calls[-3] if lane.calls else 0))
    bar, call, use = lane.at(time_us), lane.call_at(time_us), lane.use_at(time_us)
    doing = ""
    if bar is not None:
        kind, text = film.words[bar[0]]
        doing = f"step {bar[1]}, {text}" if bar[1] and kind not in ("waits", "collective") else text
    waits = film.waiting.get(lane.rank, "") if film.failure is None or time_us >= film.failure else ""
    number = f"number {call[1]}: {film.words[call[0]][1]}" if call is not None else ""
    if not number and bar is not None and bar[1] and film.words[bar[0]][0] in ("waits", "collective"):
        number = f"number {bar[1]}"
    memory = f"{use[0]:,} MiB" if use is not None else ""
    cores = f"{use[1] / 100:.2f}" if use is not None and use[1] >= 0 else ""
    if waits and "waits for" not in doing:
        doing = f"{doing}, {waits}" if doing else waits
    return [str(lane.rank), doing, number, memory, cores, lane.state]


def _last(values: list[float | None]) -> str:
    last = values[-1] if values else None
    if last is None:
        return "not finite"
    return format_count(last) if last >= 10_000 else format_number(last)


def _diagnosis(film: Film) -> list[RenderableType]:
    from rich.text import Text

    diagnosis = film.diagnosis
    assert diagnosis is not None
    parts: list[RenderableType] = [Text(""), Text(printable(diagnosis.finding), style="bold red")]
    if diagnosis.sure:
        parts.append(Text(f"{printable(diagnosis.sure[:1].upper() + diagnosis.sure[1:])}.", style="dim"))
    parts += [Text(f"  {line}") for line in waits_text(diagnosis.waits).splitlines()]
    for place in diagnosis.places:
        parts.append(Text(f"{place.who} at {printable(place.place)}"))
        for line in place.lines:
            mark = ">" if line.is_meant else " "
            parts.append(
                Text(f"  {mark} {line.number:4}  {printable(line.text)}", style="" if line.is_meant else "dim")
            )
    if diagnosis.advice:
        parts.append(Text(f"What to do: {printable(diagnosis.advice)}"))
    return parts
