"""What Slurm says: its daemons' and srun's lines in a job's output, and the text of `sacct`."""

from __future__ import annotations

import re

from frog.observe.diagnose.program.evidence import Evidence, JobState

STATES = (
    "OUT_OF_MEMORY", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "CANCELLED", "FAILED", "COMPLETED", "RUNNING", "BOOT_FAIL",
    "DEADLINE", "REQUEUED",
)  # fmt: skip
_LINES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("OUT_OF_MEMORY", re.compile(r"oom[-_ ]kill|Out Of Memory|Exceeded (job|step) memory limit|cgroup out-of-memory")),
    ("TIMEOUT", re.compile(r"CANCELLED AT \S+ DUE TO TIME LIMIT")),
    ("PREEMPTED", re.compile(r"CANCELLED AT \S+ DUE TO PREEMPTION")),
    ("NODE_FAIL", re.compile(r"CANCELLED AT \S+ DUE TO NODE FAILURE|Node failure on ")),
    ("CANCELLED", re.compile(r"CANCELLED AT \S+ (\*\*\*|DUE TO (SIGNAL|JOB))")),
)
_SPEAKER = re.compile(r"(^|\s)(slurmstepd|srun|slurmd|salloc|sbatch)(\[\S+\])?: ")
_TASKS = re.compile(r"srun: error: \S{1,255}: tasks? ([\d,-]{1,2000}): (.{1,120})")
_CODE = re.compile(r"Exited with exit code (\d{1,3})")
_SIGNALS = {
    "Killed": -9,
    "Segmentation fault": -11,
    "Aborted": -6,
    "Bus error": -7,
    "Terminated": -15,
    "Out Of Memory": -9,
}
_MOST_JOBS, _MOST_TASKS = 50, 2**20


class JobLines:
    """Slurm's lines in the output of a job."""

    def __init__(self, name: str) -> None:
        self.name, self.found = name, False
        self._jobs: list[JobState] = []
        self._codes: dict[int, int] = {}

    def read(self, text: str) -> None:
        """Read a line of a log."""
        if not _SPEAKER.search(text):
            return
        for state, pattern in _LINES:
            if pattern.search(text) and len(self._jobs) < _MOST_JOBS:
                self._jobs.append(JobState(state, self.name, text.strip()[:300]))
                self.found = True
                break
        if found := _TASKS.search(text):
            self.found = True
            code = _exit_code(found[2])
            for task in _numbers(found[1]) if code is not None else ():
                self._codes.setdefault(task, code or 0)

    def add_to(self, evidence: Evidence) -> None:
        """Add the states, and the exit codes of the tasks."""
        evidence.jobs += self._jobs
        for task, code in self._codes.items():
            evidence.tasks.setdefault(task, (code, self.name))


def _exit_code(text: str) -> int | None:
    """Return Popen's code for `Exited with exit code 1` or `Killed`."""
    if found := _CODE.match(text):
        code = int(found[1])
        return 128 - code if 128 < code < 160 else code
    return next((code for word, code in _SIGNALS.items() if text.startswith(word)), None)


def _numbers(text: str) -> list[int]:
    """Return the numbers of `0-2,5`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            low, high = int(first), int(last or first)
            if high < _MOST_TASKS and 0 <= high - low < 10_000:
                found += range(low, high + 1)
    return found


def add_sacct(evidence: Evidence, text: str, name: str) -> bool:
    """Add the states of a job and its steps from `sacct`, with columns or with `-P`; False for any other text."""
    lines = [line for line in text.split("\n")[:5000] if line.strip()]
    for number, line in enumerate(lines[:20]):
        head = [word.strip() for word in (line.split("|") if "|" in line else line.split())]
        if "State" in head and ("JobID" in head or "JobIDRaw" in head or "JobName" in head):
            rows = lines[number + 1 :]
            found = [_row(head, row, lines, number) for row in rows if not set(row.strip()) <= {"-", " "}]
            jobs = [JobState(state, name, row.strip()[:300]) for state, row in found if state is not None]
            evidence.jobs += jobs[:_MOST_JOBS]
            return bool(jobs)
    return False


def _row(head: list[str], row: str, lines: list[str], number: int) -> tuple[str | None, str]:
    if "|" in row:
        cells = [cell.strip() for cell in row.split("|")]
        place = head.index("State")
        return _state(cells[place]) if place < len(cells) else None, row
    rule = lines[number + 1] if number + 1 < len(lines) else ""
    spans = [found.span() for found in re.finditer(r"-+", rule)] if set(rule.strip()) <= {"-", " "} else []
    if len(spans) == len(head):
        first, last = spans[head.index("State")]
        return _state(row[first:last].strip()), row
    return next((state for word in row.split() if (state := _state(word)) is not None), None), row


def _state(text: str) -> str | None:
    """Return the state that a cell names: columns cut it off, as in `OUT_OF_ME+`; `CANCELLED by 1000`."""
    word = text.split(" ")[0].rstrip("+")
    return next((state for state in STATES if len(word) >= 4 and state.startswith(word)), None)
