"""Lines of NCCL's watchdog: which ranks waited in which collective, and which rank is behind."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from frog.observe.diagnose.diagnosis import span
from frog.observe.diagnose.known_errors.lines import LogLine

_WORK = re.compile(
    r"Rank (?P<rank>\d{1,6})\].{0,120}?WorkNCCL\(SeqNum=(?P<seq>\d{1,18}), OpType=(?P<op>\w{1,40})"
    r"(?:, (?:TensorShape=\[.{0,200}?\]|NumelIn=(?P<numel>\d{1,18})).{0,100}?)?"
    r"(?:, Timeout\(ms\)=(?P<timeout>\d{1,12}))?\)"
)
_LAST = re.compile(
    r"Rank (?P<rank>\d{1,6})\].{0,200}?last enqueued(?: NCCL)? work: (?P<enqueued>-?\d{1,18}), "
    r"last completed(?: NCCL)? work: (?P<completed>-?\d{1,18})"
)
_GROUP = re.compile(
    r"\[PG (?:ID \d{1,9} PG GUID )?(?P<name>[\w:.-]{1,80})(?:\([^)]{0,200}\))? Rank (?P<rank>\d{1,6})\]"
    r"(?=.{0,120}?WorkNCCL\(SeqNum=(?P<seq>\d{1,18})|.{0,200}?at work: (?P<at>\d{1,18}))"
)
_MOST_RANKS = 100_000


@dataclass(frozen=True)
class Waiting:
    """The collective in which a rank timed out."""

    rank: int
    seq: int
    op: str
    numel: int | None
    timeout_s: float | None

    def __str__(self) -> str:
        size = f" of {self.numel} elements" if self.numel is not None else ""
        return f"{self.op} number {self.seq}{size}"


class Watchdog:
    """What the watchdogs of all ranks said, the first time-out of each."""

    def __init__(self) -> None:
        self.waiting: dict[int, Waiting] = {}
        self.enqueued: dict[int, int] = {}
        self.groups: dict[int, str] = {}
        """torch's name for the process group of the collective in which a rank timed out, if a line has it."""

    def read(self, line: LogLine) -> None:
        if "WorkNCCL(" in line.text and len(self.waiting) < _MOST_RANKS and (found := _WORK.search(line.text)):
            numel, timeout = found["numel"], found["timeout"]
            waiting = Waiting(
                int(found["rank"]), int(found["seq"]), found["op"],
                int(numel) if numel else None, int(timeout) / 1000 if timeout else None,
            )  # fmt: skip
            self.waiting.setdefault(waiting.rank, waiting)
        if "last enqueued" in line.text and len(self.enqueued) < _MOST_RANKS and (found := _LAST.search(line.text)):
            self.enqueued.setdefault(int(found["rank"]), int(found["enqueued"]))

        if "[PG " in line.text and (found := _GROUP.search(line.text)):
            rank, seq = int(found["rank"]), int(found["seq"] or found["at"])
            if rank in self.waiting and self.waiting[rank].seq == seq:
                self.groups.setdefault(rank, "0" if found["name"] == "default_pg" else found["name"])

    def sentences(self) -> list[str]:
        """Describe who waited where, and who is behind or absent."""
        if not self.waiting:
            return []
        return [*_calls(self.waiting.values()), *self._behind(), *self._absent()]

    def _behind(self) -> list[str]:
        """Name the ranks whose collective has a lower number; groups have their own numbers, so this is a hint."""
        numbers = {waiting.seq for waiting in self.waiting.values()}
        if len(numbers) < 2:
            return []
        lowest = min(numbers)
        ranks = [rank for rank, waiting in self.waiting.items() if waiting.seq == lowest]
        return [f"The lowest number is that of {span(ranks)}: if all are in one process group, look there first."]

    def _absent(self) -> list[str]:
        """Name ranks between the first and the last that did not report a time-out."""
        ranks = set(self.waiting)
        absent = sorted(set(range(max(ranks) + 1)) - ranks) if max(ranks) < 1024 else []
        if not absent or len(absent) > len(ranks):
            return []
        return [f"No time-out of {span(absent)} is in the log: look there first."]


def _calls(waiting: Iterable[Waiting]) -> list[str]:
    """Describe each collective with its ranks, the first four of them."""
    ranks: dict[str, list[int]] = {}
    for one in waiting:
        ranks.setdefault(str(one), []).append(one.rank)
    said = [f"{span(who).capitalize()} waited in {call}." for call, who in ranks.items()]
    return said[:4] + ([f"… and {len(said) - 4} more collectives"] if len(said) > 4 else [])
