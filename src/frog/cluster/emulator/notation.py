"""Slurm's notations: lists of hosts, counts per node, arrays, signals, file names, times."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from frog.cluster.emulator import SlurmRefusal, unknown
from frog.cluster.slurm_options import time_limit_s
from frog.core.units import parse_whole

_MAX_ARRAY_INDEX = 1000
_MOST_HOSTS = 10_000
_MOST_SECONDS = 2**32
_MOST_WIDTH = 10
"""Largest width to which Slurm pads a number in a file name with zeros."""
_NO_TASK = 4294967294
"""Value of %a in a job that is not an array."""


def expand_hosts(text: str) -> list[str]:
    """Expand node[1-2,4],login to node1, node2, node4, login. Raises ValueError for an invalid or too long list."""
    hosts: list[str] = []
    rest = text
    while rest:
        match = re.match(r"([^\[\],\s]+)(?:\[([\d,-]+)\])?(?:,|$)", rest)
        if match is None:
            raise ValueError(text)
        prefix, ranges = match.groups()
        hosts += [prefix] if ranges is None else [prefix + number for number in _numbers(ranges)]
        if len(hosts) > _MOST_HOSTS:
            raise ValueError(text)
        rest = rest[match.end() :]
    return hosts


def _numbers(ranges: str) -> list[str]:
    """Expand 01-03,7 to 01, 02, 03, 7."""
    numbers: list[str] = []
    for part in ranges.split(","):
        begin, _, end = part.partition("-")
        first, last = parse_whole(begin), parse_whole(end or begin)
        if first is None or last is None or not 0 <= last - first < _MOST_HOSTS - len(numbers):
            raise ValueError(ranges)
        numbers += [f"{number:0{len(begin)}d}" for number in range(first, last + 1)]
    return numbers


def compress_hosts(hosts: Sequence[str]) -> str:
    """Compress node1, node2, node4 to node[1-2,4], the form of SLURM_JOB_NODELIST."""
    parts = []
    for prefix, group in groupby(hosts, key=lambda host: host.rstrip("0123456789")):
        numbers = [host.removeprefix(prefix) for host in group]
        ranges = compress_numbers([number for number in numbers if number])
        parts.append(prefix + (numbers[0] if len(numbers) == 1 else f"[{ranges}]"))
    return ",".join(parts)


def compress_numbers(numbers: Sequence[int | str]) -> str:
    """Compress 1, 2, 4 to 1-2,4. Keeps leading zeros: 09, 10 becomes 09-10."""
    spans: list[list[str]] = []
    for number in map(str, numbers):
        if spans and number == str(int(spans[-1][1]) + 1).zfill(len(spans[-1][0])):
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(first if first == last else f"{first}-{last}" for first, last in spans)


def compress_counts(counts: Sequence[int]) -> str:
    """Compress 2, 2, 1 to 2(x2),1, the form of SLURM_TASKS_PER_NODE."""
    groups = [(count, len(list(group))) for count, group in groupby(counts)]
    return ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in groups)


@dataclass(frozen=True)
class ArraySpec:
    """Value of `--array`: task numbers, and the largest number of simultaneous tasks."""

    tasks: tuple[int, ...]
    step: int
    at_once: int | None


def parse_array(text: str) -> ArraySpec:
    """Parse 0-3%2 or 1,3,5-9:2. Raises SlurmRefusal for an invalid array."""
    wrong = SlurmRefusal("Batch job submission failed: Invalid job array specification")
    indices, percent, most = text.partition("%")
    if percent and not parse_whole(most):
        raise wrong
    tasks: set[int] = set()
    for part in indices.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?", part)
        if match is None:
            raise wrong
        first, last, by = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or by < 1 or last > _MAX_ARRAY_INDEX:
            raise wrong
        tasks |= set(range(first, last + 1, by))
    ordered = tuple(sorted(tasks))
    gaps = {after - before for before, after in pairwise(ordered)}
    step = gaps.pop() if len(gaps) == 1 else 1
    return ArraySpec(ordered, step, int(most) if percent else None)


@dataclass(frozen=True)
class WarningSignal:
    """Value of `--signal`: the signal, its time before the limit, and True if only the batch script receives it."""

    number: int
    before_s: int
    to_batch: bool


def signal_number(text: str) -> int | None:
    """Parse USR1, SIGUSR1 or 10; None for an unknown signal."""
    if (number := parse_whole(text)) is not None:
        return number if 0 < number < 65 else None
    named = getattr(signal, f"SIG{text.upper().removeprefix('SIG')}", None)
    return int(named) if isinstance(named, signal.Signals) else None


def parse_signal(text: str) -> WarningSignal:
    """Parse [B:]USR1[@60]. Raises SlurmRefusal for an invalid value."""
    match = re.fullmatch(r"(?:([A-Z]+):)?([A-Za-z0-9]+)(?:@([0-9]{1,9}))?", text)
    number = signal_number(match[2]) if match else None
    if match is None or number is None or int(match[3] or 60) > 65535:
        raise SlurmRefusal("Invalid --signal specification", exit_code=255)
    if match[1] not in (None, "B"):
        raise unknown(f"--signal={match[1]}:")
    return WarningSignal(number, int(match[3] or 60), match[1] == "B")


def parse_time_limit(text: str) -> int | None:
    """Parse a time limit into minutes, None for no limit; round seconds up, because Slurm counts in minutes."""
    try:
        seconds = time_limit_s(text)
    except ValueError:
        raise SlurmRefusal("Invalid --time specification", exit_code=255) from None
    if seconds is not None and seconds > _MOST_SECONDS:
        raise SlurmRefusal("Invalid --time specification", exit_code=255)
    return None if not seconds else -(-seconds // 60)


def fill_pattern(pattern: str, values: Mapping[str, str]) -> str:
    """Expand slurm-%j.out to slurm-12.out, %3a to 007. Raises SlurmRefusal for an unsupported pattern."""
    if "\\" in pattern:
        raise unknown(r"\ in the name of an output file")

    def value(match: re.Match[str]) -> str:
        width, letter = match.groups()
        if letter == "%":
            return "%"
        if letter not in values:
            raise unknown(f"%{letter} in the name {pattern!r}")
        return values[letter].zfill(min(int(width[:3] or 0), _MOST_WIDTH))

    return re.sub(r"%(\d*)(.)", value, pattern)


def pattern_values(
    job_id: int, name: str, user: str, host: str, array_job: int | None = None, array_task: int | None = None
) -> dict[str, str]:
    """Return the values of %j, %x and other patterns in the names of a job's files."""
    return {
        "j": str(job_id),
        "J": str(job_id),
        "x": name,
        "u": user,
        "N": host,
        "A": str(job_id if array_job is None else array_job),
        "a": str(_NO_TASK if array_task is None else array_task),
        "n": "0",
        "t": "0",
    }


def write_elapsed(seconds: float) -> str:
    """Format a time as squeue does: 0:07, 12:34, 1:00:00, 1-00:00:00."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def write_moment(unix_s: float | None) -> str:
    """Format a time as 2026-01-31T12:34:56."""
    return "Unknown" if unix_s is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(unix_s))


def parse_moment(text: str) -> float:
    """Parse now, now+5seconds, now+1minute or 2026-01-31T12:34:56 into seconds since 1970. Raises ValueError."""
    match = re.fullmatch(r"now(?:\+([0-9]{1,9})(seconds?|minutes?|hours?|days?)?)?", text)
    if match:
        unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}[(match[2] or "s")[0]]
        return time.time() + int(match[1] or 0) * unit
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except OverflowError:
        raise ValueError(text) from None
