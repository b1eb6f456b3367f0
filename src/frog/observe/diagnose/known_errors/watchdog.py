"""Lines of NCCL's watchdog: which ranks waited in which collective, and which rank is behind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from frog.core.units import span
from frog.observe.diagnose.known_errors.lines import LogLine

_WORK = re.compile(
    r"Rank (?P<rank>\d{1,6})\].{0,120}?WorkNCCL\(SeqNum=(?P<seq>\d{1,18}), OpType=(?P<op>\w{1,40})"
    r"(?:, (?:TensorShape=\[.{0,200}?\]|NumelIn=(?P<numel>\d{1,18})).{0,100}?)?"
    r"(?:, Timeout\(ms\)=(?P<timeout>\d{1,12}))?\)"
)
_AT_WORK = re.compile(r"Rank (?P<rank>\d{1,6})\].{0,120}?(?:Timeout at NCCL work|watchdog at work): (?P<seq>\d{1,18})")
_LAST = re.compile(
    r"Rank (?P<rank>\d{1,6})\].{0,400}?[Ll]ast enqueued(?: NCCL)? work: (?P<enqueued>-?\d{1,18}), "
    r"last completed(?: NCCL)? work: (?P<completed>-?\d{1,18})"
)
_GROUP = re.compile(
    r"\[PG (?:ID \d{1,9} PG GUID )?(?P<name>[\w:.-]{1,80})(?:\([^)]{0,200}\))? Rank (?P<rank>\d{1,6})\]"
    r"(?=.{0,120}?WorkNCCL\(SeqNum=(?P<seq>\d{1,18})|.{0,200}?at work: (?P<at>\d{1,18}))"
)
_SIGNAL = re.compile(
    r"Rank (?P<rank>\d{1,6})\].{0,120}?[Rr]eceived a dump signal due to a collective timeout from\s{1,4}"
    r"(?:rank (?P<source>\d{1,6})|this local\s{1,4}rank)?"
)
_PAIR = re.compile(r"TIMEOUT self_rank = (?P<rank>\d{1,6}) pair_rank = (?P<peer>\d{1,6})")
"""gloo's words for the two ranks of a connection on which one waited."""
_WORLD = re.compile(r"\bnranks (\d{1,6})\b|\bworld_size[=: ]{1,3}(\d{1,6})\b", re.IGNORECASE)
_MOST_RANKS = 100_000
_SHORT_S = 60.0
"""A time limit below this one can be why a healthy run ends: torch's own is 10 minutes or longer."""
_REPEATED = re.compile(r"\[repeated \d{1,9}x across cluster\]|message repeated \d{1,9} times")
"""What Ray, or syslog, writes instead of lines that differ only in their numbers."""


@dataclass(frozen=True)
class Waiting:
    """The collective in which a rank timed out."""

    rank: int
    seq: int
    op: str
    """Empty if the log has only the number."""
    numel: int | None
    timeout_s: float | None

    def __str__(self) -> str:
        size = f" of {self.numel} elements" if self.numel is not None else ""
        return f"{self.op or 'collective'} number {self.seq}{size}"


class Watchdog:
    """What the watchdogs of all ranks said, the first time-out of each."""

    def __init__(self) -> None:
        self.waiting: dict[int, Waiting] = {}
        self.enqueued: dict[int, int] = {}
        self.groups: dict[int, str] = {}
        """torch's name for the process group of the collective in which a rank timed out, if a line has it."""
        self.signalled: set[int] = set()
        """Ranks that were asked for a dump because another rank timed out."""
        self.reporter: int | None = None
        """The rank whose time-out the others report."""
        self.peers: dict[int, int] = {}
        """The rank for which a rank waited until gloo's time-out."""
        self.world_size = 0
        self.abridged = False
        """True if the log leaves out lines of other processes."""
        self.suspects: list[int] = []
        """Ranks that the sentences name as behind, absent or different."""

    def read(self, line: LogLine) -> None:
        text = line.text
        self.abridged = self.abridged or ("repeated " in text and _REPEATED.search(text) is not None)
        if "WorkNCCL(" in text and len(self.waiting) < _MOST_RANKS and (work := _WORK.search(text)):
            numel, timeout = work["numel"], work["timeout"]
            self._add(
                Waiting(
                    int(work["rank"]), int(work["seq"]), work["op"],
                    int(numel) if numel else None, int(timeout) / 1000 if timeout else None,
                )
            )  # fmt: skip
        elif " work: " in text and len(self.waiting) < _MOST_RANKS and (work := _AT_WORK.search(text)):
            self._add(Waiting(int(work["rank"]), int(work["seq"]), "", None, None))
        if "ast enqueued" in text and len(self.enqueued) < _MOST_RANKS and (last := _LAST.search(text)):
            self.enqueued.setdefault(int(last["rank"]), int(last["enqueued"]))
        if "dump signal" in text and (signal := _SIGNAL.search(text)):
            self.signalled.add(int(signal["rank"]))
            if self.reporter is None:
                self.reporter = int(signal["source"] or signal["rank"])
        if "pair_rank" in text and (pair := _PAIR.search(text)):
            self.peers.setdefault(int(pair["rank"]), int(pair["peer"]))
        if "[PG " in text and (group := _GROUP.search(text)):
            rank, seq = int(group["rank"]), int(group["seq"] or group["at"])
            if rank in self.waiting and self.waiting[rank].seq == seq:
                self.groups.setdefault(rank, "0" if group["name"] == "default_pg" else group["name"])
        if not self.world_size and ("nranks" in text or "world_size" in text.lower()):
            world = _WORLD.search(text)
            self.world_size = int(world[1] or world[2]) if world else 0

    def _add(self, waiting: Waiting) -> None:
        """Keep the first time-out of a rank; a later line may add the operation."""
        before = self.waiting.get(waiting.rank)
        if before is None or (not before.op and before.seq == waiting.seq):
            self.waiting[waiting.rank] = waiting

    def sentences(self) -> list[str]:
        """Describe who waited where, and who is behind or absent."""
        if not self.waiting:
            return [*self._reported(), *self._pairs()]
        return [*_calls(self.waiting.values()), *self._short(), *self._sizes(), *self._compared(), *self._reported()]

    def _pairs(self) -> list[str]:
        return [
            f"Rank {rank} waited for rank {peer} in a collective of gloo: rank {peer} was busy, stuck or had ended."
            for rank, peer in list(self.peers.items())[:4]
        ]

    def _short(self) -> list[str]:
        limits = [waiting.timeout_s for waiting in self.waiting.values() if waiting.timeout_s is not None]
        if not limits or min(limits) >= _SHORT_S:
            return []
        return [
            f"The time limit is only {min(limits):g} s: the program sets it (timeout= of init_process_group or "
            "new_group), and the first steps of a healthy run can take longer."
        ]

    def _compared(self) -> list[str]:
        if self.abridged:
            return [
                "The log leaves out such lines of other ranks (`[repeated …x across cluster]`), so it does not show "
                "who is behind or absent: RAY_DEDUP_LOGS=0 keeps them."
            ]
        return self._behind() or self._absent()

    def _one_group(self) -> bool:
        """True if no line names two process groups, whose numbers would not be comparable."""
        return len(set(self.groups.values())) < 2

    def _sizes(self) -> list[str]:
        """Name ranks that called the same number with other sizes."""
        by_seq: dict[int, dict[int, list[int]]] = {}
        for waiting in self.waiting.values():
            if waiting.numel is not None:
                by_seq.setdefault(waiting.seq, {}).setdefault(waiting.numel, []).append(waiting.rank)
        sizes = next((sizes for sizes in by_seq.values() if len(sizes) > 1), None)
        if sizes is None or not self._one_group():
            return []
        odd = min(sizes.values(), key=len)
        self.suspects = odd
        return [f"The same number has other sizes: {span(odd)} differs, so the ranks called it with unequal tensors."]

    def _behind(self) -> list[str]:
        """Name the ranks that called fewer collectives; groups have their own numbers, so this is a hint."""
        numbers = {waiting.seq for waiting in self.waiting.values()}
        if len(numbers) > 1:
            lowest = min(numbers)
            ranks = [rank for rank, waiting in self.waiting.items() if waiting.seq == lowest]
            self.suspects = ranks
            return [f"The lowest number is that of {span(ranks)}: if all are in one process group, look there first."]
        called = Counter(self.enqueued.values())
        most = max(called, default=0)
        behind = sorted(rank for rank, number in self.enqueued.items() if number < most and rank not in self.waiting)
        if not behind or not self._one_group():
            return []
        counts = ", ".join(sorted({str(self.enqueued[rank]) for rank in behind}))
        self.suspects = behind
        return [
            f"{span(behind).capitalize()} called {counts} collectives, the others up to {most}, and timed out in none: "
            "look there first."
        ]

    def _absent(self) -> list[str]:
        """Name ranks of the world that did not report a time-out."""
        ranks = set(self.waiting)
        size = max(max(ranks) + 1, self.world_size, *(rank + 1 for rank in self.signalled))
        absent = sorted(set(range(size)) - ranks) if size <= 1024 else []
        if not absent or len(absent) > len(ranks):
            return []
        self.suspects = absent
        return [f"No time-out of {span(absent)} is in the log: look there first."]

    def _reported(self) -> list[str]:
        if self.reporter is None or self.reporter in self.waiting:
            return []
        self.suspects = self.suspects or [self.reporter]
        return [f"Rank {self.reporter} timed out first, as other ranks report; its own log shows in which collective."]


def _calls(waiting: Iterable[Waiting]) -> list[str]:
    """Describe each collective with its ranks, the first four of them."""
    ranks: dict[str, list[int]] = {}
    for each in waiting:
        ranks.setdefault(str(each), []).append(each.rank)
    said = [f"{span(who).capitalize()} waited in {call}." for call, who in ranks.items()]
    return said[:4] + ([f"… and {len(said) - 4} more collectives"] if len(said) > 4 else [])
