"""Records of jobs and their steps: what they request, what they are allocated, and their state."""

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
    """True if `text` names a job: by its label (12 or 12_3), its own number or its array's number.

    A job outside an array has no array number, and a task that has not started has no job id.
    """
    return text == label or text in [str(number) for number in numbers if number is not None]


@dataclass(frozen=True)
class Node:
    """A simulated node."""

    name: str
    cpus: int
    gpus: int


@dataclass
class JobRequest:
    """A request of sbatch or srun, sent as JSON."""

    name: str
    user: str
    submit_dir: str
    work_dir: str
    submit_host: str
    umask: int
    environment: dict[str, str]
    command: str
    """Command that `scontrol show job` prints."""
    script: str | None = None
    """None for a request of srun, which runs one step."""
    arguments: list[str] = field(default_factory=list)
    export: str | None = None
    nodes: int | None = None
    node_names: list[str] = field(default_factory=list)
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gpus_per_node: int = 0
    gpus_per_node_option: int | None = None
    """Value of --gpus-per-node, which SLURM_GPUS_PER_NODE repeats; --gres overrides it."""
    gpus_per_task: int | None = None
    exclusive: bool = False
    mem_mb: int | None = None
    mem_per_cpu_mb: int | None = None
    mem_per_gpu_mb: int | None = None
    gpus_option: int | None = None
    """Value of --gpus, which SLURM_GPUS repeats."""
    partition: str = "main"
    constraint: str | None = None
    account: str | None = None
    comment: str | None = None
    time_limit_min: int | None = None
    signal: tuple[int, int, bool] | None = None
    """Signal number, seconds before the time limit, and True to signal only the batch script."""
    output: str | None = None
    error: str | None = None
    input: str | None = None
    append: bool = False
    array: tuple[list[int], int, int | None] | None = None
    """Task numbers, step, and largest number of simultaneous tasks."""
    dependency_text: str | None = None
    dependency: list[tuple[str, list[str]]] = field(default_factory=list)
    """Pairs (kind, jobs), all of which must be satisfied."""
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
    """A job's allocation on one node."""

    node: str
    cpus: int
    gpus: list[int]
    tasks: int


@dataclass(frozen=True)
class StepRequest:
    """The resources that srun requests from its job."""

    ntasks: int
    num_nodes: int
    node_names: tuple[str, ...]
    cpus_per_task: int
    overlap: bool
    exact: bool
    per_node: int | None = None
    """Value of --ntasks-per-node; ignored if it contradicts the other numbers."""
    gpus_per_task: int | None = None
    gpus_per_node: int | None = None
    """Value of --gpus-per-node or --gres in the step."""
    all_gpus: bool = False
    """True if the step has all GPUs of its nodes, because its job requested them with --gpus-per-node."""

    @property
    def reserves_gpus(self) -> bool:
        """True if other steps cannot use its GPUs."""
        return bool(self.gpus_per_task) and not self.all_gpus and not self.overlap


@dataclass(frozen=True)
class StepAllocation:
    """A step's resources on one node."""

    node: str
    tasks: int
    cpus: int
    """CPUs that other steps cannot use: all CPUs of the job there, unless --exact."""
    gpus: list[int] = field(default_factory=list)
    """All GPUs of the job there, unless --gpus-per-task."""


@dataclass
class JobStep:
    """One srun in a job."""

    number: int
    cpus: dict[str, int]
    """Reserved on each node; empty with --overlap."""
    srun_pid: int
    notify: Callable[[str], None]
    """Sends srun a line to print."""
    gpus: dict[str, list[int]] = field(default_factory=dict)
    """Reserved on each node, only with --gpus-per-task."""
    groups: list[int] = field(default_factory=list)
    """Process groups of its tasks."""
    ended: bool = False


@dataclass
class EmulatedJob:
    """One job in the queue, or one task of an array."""

    request: JobRequest
    submitted_s: float
    job_id: int | None
    """None for a task of an array that has not started, because Slurm assigns its number at the start."""
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
    """End of its time limit, in seconds since 1970."""
    allocations: list[NodeAllocation] = field(default_factory=list)
    steps: list[JobStep] = field(default_factory=list)
    batch_group: int | None = None
    exit_code: int = 0
    exit_signal: int = 0
    warned: bool = False
    ending: str | None = None
    """State that an ending job will have; PENDING for a requeue."""
    requested_end: str | None = None
    """State that its own script requested and that is not yet set, because the script may end first."""
    kill_s: float | None = None
    """Time of the SIGKILL that follows SIGTERM."""

    @property
    def number(self) -> int:
        """Job id; for a pending array, that of the array."""
        number = self.job_id if self.job_id is not None else self.array_job
        assert number is not None
        return number

    @property
    def label(self) -> str:
        """Label such as 12, or 12_3 for a task of an array."""
        return str(self.job_id) if self.array_job is None else f"{self.array_job}_{self.array_task}"

    @property
    def node_names(self) -> list[str]:
        return [allocation.node for allocation in self.allocations]

    def busy_cpus(self) -> dict[str, int]:
        """Return the number of CPUs of each node that its steps have reserved."""
        busy: Counter[str] = Counter()
        for step in self.steps:
            busy.update({} if step.ended else step.cpus)
        return dict(busy)

    def busy_gpus(self) -> set[tuple[str, int]]:
        """Return the GPUs that its steps have reserved, each with its node."""
        running = [step.gpus for step in self.steps if not step.ended]
        return {(node, gpu) for gpus in running for node, numbers in gpus.items() for gpu in numbers}

    @property
    def has_ended(self) -> bool:
        return self.state in (COMPLETED, FAILED, CANCELLED, TIMEOUT)

    @property
    def is_active(self) -> bool:
        """True if it has allocated nodes."""
        return self.state in (RUNNING, COMPLETING)

    @property
    def wait_code(self) -> int:
        """Exit code of `sbatch --wait`."""
        return 1 if self.exit_signal else self.exit_code
