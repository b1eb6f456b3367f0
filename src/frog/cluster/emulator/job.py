"""A job as the daemon keeps it: what was asked for, where it runs, how it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

PENDING, RUNNING, COMPLETING = "PENDING", "RUNNING", "COMPLETING"
COMPLETED, FAILED, CANCELLED, TIMEOUT = "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"
SHORT_STATES = {
    PENDING: "PD",
    RUNNING: "R",
    COMPLETING: "CG",
    COMPLETED: "CD",
    FAILED: "F",
    CANCELLED: "CA",
    TIMEOUT: "TO",
}


def is_called(text: str, label: str, *numbers: int | None) -> bool:
    """Whether a job goes by that name: by its label, 12 or 12_3, or by a number of its own or of its array.

    A job outside of an array has none of the latter, a task that has not started none of the former.
    """
    return text == label or text in [str(number) for number in numbers if number is not None]


@dataclass(frozen=True)
class Node:
    """A pretended machine."""

    name: str
    cpus: int
    gpus: int


@dataclass
class JobRequest:
    """What somebody asked for with sbatch or srun. Crosses the wire as JSON."""

    name: str
    user: str
    submit_dir: str
    work_dir: str
    submit_host: str
    umask: int
    environment: dict[str, str]
    command: str
    """What `scontrol show job` gives as the command."""
    script: str | None = None
    """None if srun asks, for one step."""
    arguments: list[str] = field(default_factory=list)
    export: str | None = None
    nodes: int | None = None
    node_names: list[str] = field(default_factory=list)
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gpus_per_node: int = 0
    gpus_per_node_option: int | None = None
    """What --gpus-per-node said, which SLURM_GPUS_PER_NODE repeats; --gres, if it is there, decides."""
    gpus_per_task: int | None = None
    exclusive: bool = False
    mem_mb: int | None = None
    account: str | None = None
    comment: str | None = None
    time_limit_min: int | None = None
    signal: tuple[int, int, bool] | None = None
    """Number, seconds before the time limit, to the batch script alone."""
    output: str | None = None
    error: str | None = None
    input: str | None = None
    append: bool = False
    array: tuple[list[int], int, int | None] | None = None
    """Tasks, step, how many at once."""
    dependency_text: str | None = None
    dependency: list[tuple[str, list[str]]] = field(default_factory=list)
    """(kind, jobs): all must hold."""
    kill_on_invalid_dependency: bool = False
    requeue: bool = True
    hold: bool = False

    @classmethod
    def from_wire(cls, table: dict[str, Any]) -> JobRequest:
        return cls(**{item.name: table[item.name] for item in fields(cls)})

    @property
    def cpus_of_task(self) -> int:
        return self.cpus_per_task or 1


@dataclass
class NodeAllocation:
    """What a job has of a node."""

    node: str
    cpus: int
    gpus: list[int]
    tasks: int


@dataclass
class JobStep:
    """One srun in a job."""

    number: int
    cpus: dict[str, int]
    """Reserved on each node; empty with --overlap."""
    srun_pid: int
    notify: Callable[[str], None]
    """Gives srun a line for its user."""
    gpus: dict[str, list[int]] = field(default_factory=dict)
    """Reserved on each node, by --gpus-per-task alone."""
    groups: list[int] = field(default_factory=list)
    """Process groups of its tasks."""
    ended: bool = False


@dataclass
class EmulatedJob:
    """One job in the queue, or one task of an array."""

    request: JobRequest
    submitted_s: float
    job_id: int | None
    """None for a task of an array that has not started: Slurm numbers it then."""
    array_job: int | None = None
    array_task: int | None = None
    state: str = PENDING
    reason: str = "None"
    restarts: int = 0
    limit_min: int | None = None
    held: bool = False
    started_s: float | None = None
    ended_s: float | None = None
    limit_s: float | None = None
    """When its time is over, in seconds since 1970."""
    allocations: list[NodeAllocation] = field(default_factory=list)
    steps: list[JobStep] = field(default_factory=list)
    batch_group: int | None = None
    exit_code: int = 0
    exit_signal: int = 0
    warned: bool = False
    ending: str | None = None
    """Why it is being ended: the state that it will have, or PENDING for a requeue."""
    requested_end: str | None = None
    """The state that its own script has asked for and that is not yet carried out: the script may end before."""
    kill_s: float | None = None
    """When SIGKILL follows SIGTERM."""

    @property
    def number(self) -> int:
        """The number of the job; of an array that waits, that of the array."""
        number = self.job_id if self.job_id is not None else self.array_job
        assert number is not None
        return number

    @property
    def label(self) -> str:
        """12, or 12_3 for a task of an array."""
        return str(self.job_id) if self.array_job is None else f"{self.array_job}_{self.array_task}"

    @property
    def node_names(self) -> list[str]:
        return [allocation.node for allocation in self.allocations]

    def busy_cpus(self) -> dict[str, int]:
        """How many CPUs of each node its steps have reserved."""
        busy: Counter[str] = Counter()
        for step in self.steps:
            busy.update({} if step.ended else step.cpus)
        return dict(busy)

    def busy_gpus(self) -> set[tuple[str, int]]:
        """The GPUs that its steps have reserved, each with its node."""
        running = [step.gpus for step in self.steps if not step.ended]
        return {(node, gpu) for gpus in running for node, numbers in gpus.items() for gpu in numbers}

    @property
    def has_ended(self) -> bool:
        return self.state in (COMPLETED, FAILED, CANCELLED, TIMEOUT)

    @property
    def is_active(self) -> bool:
        """Whether it holds nodes."""
        return self.state in (RUNNING, COMPLETING)

    @property
    def wait_code(self) -> int:
        """The exit code that `sbatch --wait` gives."""
        return 1 if self.exit_signal else self.exit_code
