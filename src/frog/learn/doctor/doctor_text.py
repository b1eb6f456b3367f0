"""Format the doctor's findings as 80-column text and as JSON."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from frog.core.machine import usable_cores
from frog.core.units import some_of
from frog.learn.doctor.lab_verdict import LabVerdict, judge, state_of
from frog.learn.doctor.needs import LABS, NEEDS, Need
from frog.learn.doctor.seen import Seen

_WIDTH = 80
_TEXT_AT = 31
_MOST_NAMES = 4


def as_text(seen: Mapping[str, Seen], labs: Sequence[int]) -> str:
    """Return the findings by section, then the verdict on each lab."""
    needs = [need for need in NEEDS if not need.labs or set(need.labs) & set(labs)]
    lines = list(_findings([need for need in needs if seen[need.name].answered], seen))
    if late := [need for need in needs if not seen[need.name].answered]:
        lines += ["", *_no_answer(late, len(needs), seen)]
    if optional := [need for need in needs if state_of(need, seen[need.name]) == "optional"]:
        lines += ["", "optional; no lab needs these:", *_commands(optional)]
    for lab in labs:
        lines += ["", *_lab(judge(seen, lab))]
    return "\n".join(lines)


def as_json(seen: Mapping[str, Seen], labs: Sequence[int]) -> dict[str, Any]:
    verdicts = [judge(seen, lab) for lab in labs]
    return {
        "runs": all(verdict.runs for verdict in verdicts),
        "labs": {str(verdict.lab): _lab_json(verdict) for verdict in verdicts},
        "findings": {need.name: _finding_json(need, seen[need.name]) for need in NEEDS},
    }


def _lab_json(verdict: LabVerdict) -> dict[str, Any]:
    return {
        "runs": verdict.runs,
        "instead": {need.name: need.without for need in verdict.instead},
        "unknown": [need.name for need in verdict.unknown],
        "install": {need.name: {"macos": need.macos, "debian": need.debian} for need in verdict.missing},
    }


def _finding_json(need: Need, seen: Seen) -> dict[str, Any]:
    said = {"state": state_of(need, seen), "found": seen.text, "labs": need.labs, "instead": need.without}
    return {**said, "macos": need.macos, "debian": need.debian}


def _findings(needs: Iterable[Need], seen: Mapping[str, Seen]) -> Iterator[str]:
    section = None
    for need in needs:
        if need.section != section:
            section = need.section
            yield from ("", section)
        name = need.name.removeprefix("gloo ")
        yield from _hanging(f"  {state_of(need, seen[need.name]):<9} {name}", seen[need.name].text, _TEXT_AT)


def _no_answer(late: Sequence[Need], num_needs: int, seen: Mapping[str, Seen]) -> list[str]:
    """Say of all probes that took too long, in one paragraph, that nothing is known."""
    first = next((seen[need.name].text for need in late if need.name != "torchrun"), seen[late[0].name].text)
    names = some_of([need.name for need in late], _MOST_NAMES)
    load, cores = os.getloadavg()[0], usable_cores()
    busy = f" The machine is busy: load {load:.1f} on {cores:g} cores." if load > cores else ""
    text = f"{len(late)} of {num_needs} checks took too long, so nothing is known about {names}.{busy}"
    return [*textwrap.wrap(text, _WIDTH), *textwrap.wrap(f"  {first}", _WIDTH, subsequent_indent="  ")]


def _lab(verdict: LabVerdict) -> Iterator[str]:
    if verdict.runs:
        says = "runs, with these substitutes:" if verdict.instead else "runs"
    else:
        says = "install first:" if verdict.missing else "unknown: checks took too long"
    yield f"lab {verdict.lab}, {LABS[verdict.lab]}: {says}"
    yield from _commands(verdict.missing)
    if verdict.instead and not verdict.runs:
        yield "  and these substitutes:"
    for need in verdict.instead:
        yield from _hanging(f"  {need.name}", str(need.without), _TEXT_AT - 6)


def _commands(needs: Iterable[Need]) -> Iterator[str]:
    for need in needs:
        yield f"  {need.name}"
        if need.without is not None:
            yield from _hanging("    instead", need.without, 13)
        for system, command in (("macOS", need.macos), ("Debian", need.debian)):
            if command is not None:
                yield from _hanging(f"    {system}", command, 13)


def _hanging(begin: str, text: str, column: int) -> list[str]:
    """Return `begin`, then the wrapped text starting at a column."""
    space = " " * column
    lines = textwrap.wrap(text, _WIDTH - column, break_on_hyphens=False) or [""]
    first = f"{begin:<{column - 1}} {lines[0]}".rstrip()
    return [first, *(space + line for line in lines[1:])]
