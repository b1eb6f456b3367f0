"""The daemon's state and actions: the queue, the nodes, the clock, batch scripts, and the ends of jobs.

One lock guards all state. Each batch script has a thread that waits for it; one more thread starts jobs and enforces
their time limits.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from frog.cluster.emulator import SlurmRefusal
from frog.cluster.emulator.emulated_job import (
    CANCELLED,
    COMPLETED,
    COMPLETING,
    FAILED,
    PENDING,
    RUNNING,
    TIMEOUT,
    EmulatedJob,
    JobRequest,
    JobStep,
    Node,
    NodeAllocation,
    StepAllocation,
    StepRequest,
)
from frog.cluster.emulator.job_processes import (
    batch_variables,
    enter,
    kill_marked,
    mark_of,
    signal_marked,
    signal_one,
    submitted_environment,
)
from frog.cluster.emulator.notation import fill_pattern, pattern_values, write_moment
from frog.cluster.emulator.scheduling import (
    check_fits,
    check_names,
    find_jobs,
    next_to_start,
    place_step,
)
from frog.cluster.node_names import NodeNames
from frog.cluster.simulated_cluster import SiteNames

_CONT, _TERM = signal.SIGCONT, signal.SIGTERM
LOOK_S = 30.0
"""Interval in which Slurm checks time limits. Its warning arrives up to one interval early, and never before the first
check of a job. The emulator sends it in the middle of that span."""
_SECOND_TERM_S = 0.5
_YEAR_MIN = 365 * 24 * 60
"""Value that Slurm uses for no limit."""
_NO_FILE = 53
"""Signal that Slurm reports for a job whose output file cannot be opened."""

_one_at_a_time = threading.Lock()
"""Prevents a forked process from inheriting a script that another thread still writes: it could not be executed."""


class SlurmController:
    """One emulated cluster: its queue, nodes and jobs."""

    def __init__(self, folder: Path, cluster: str, nodes: Sequence[Node], first_job: int, kill_wait_s: float) -> None:
        self.folder = folder
        self.cluster = cluster
        self.nodes = list(nodes)
        self.kill_wait_s, self.look_s = kill_wait_s, LOOK_S
        self.names: NodeNames | None = None
        self.site = SiteNames()
        self.jobs: list[EmulatedJob] = []
        self.changed = threading.Condition(threading.RLock())
        self.stopping = False
        self._next_job = first_job

    # ---- the queue

    def submit(self, request: JobRequest, partition: str | None) -> EmulatedJob:
        """Add a job, or all tasks of an array, to the queue; return the first."""
        check_names(request, partition, self.site)
        request.partition = partition or request.partition
        never = check_fits(request, self.nodes)
        with self.changed:
            number, self._next_job = self._next_job, self._next_job + 1
            now = time.time()
            if request.array is None:
                new = [EmulatedJob(request, now, number)]
            else:
                new = [EmulatedJob(request, now, None, number, task) for task in request.array[0]]
            for job in new:
                job.held, job.reason = request.hold, never or "None"
                job.limit_min = request.time_limit_min
            self.jobs += new
            self.changed.notify_all()
            return new[0]

    def run(self) -> None:
        """Start jobs, and warn and stop jobs at their time limits, until the daemon stops."""
        with self.changed:
            while not self.stopping:
                self._drop_impossible()
                while next_start := next_to_start(self.jobs, self.nodes):
                    self._start(*next_start)
                self._watch_the_clock(time.time())
                self.changed.wait(timeout=self._until_next())

    def _start(self, job: EmulatedJob, allocations: list[NodeAllocation]) -> None:
        if job.job_id is None:
            job.job_id = self._number_of_task(job)
        job.allocations, job.steps, job.state, job.reason = allocations, [], RUNNING, "None"
        job.started_s, job.ended_s, job.ending, job.requested_end = time.time(), None, None, None
        job.kill_s, job.warned = None, False
        job.exit_code = job.exit_signal = 0
        job.limit_s = None if job.limit_min is None else job.started_s + 60 * job.limit_min
        if job.request.script is not None:
            threading.Thread(target=self._run_batch, args=(job,), name=f"job {job.label}", daemon=True).start()
        self.changed.notify_all()

    def _number_of_task(self, job: EmulatedJob) -> int:
        """Return a new number for each task of an array, and the array's own number for the last."""
        waiting = [other for other in self.jobs if other.array_job == job.array_job and other.job_id is None]
        if len(waiting) == 1:
            return job.number
        self._next_job += 1
        return self._next_job - 1

    def _drop_impossible(self) -> None:
        for job in self.jobs:
            never = job.reason == "DependencyNeverSatisfied" and job.request.kill_on_invalid_dependency
            if job.state == PENDING and never:
                self._cancel_pending(job)

    def _until_next(self) -> float:
        """Return the seconds until the next timed event."""
        moments = [job.kill_s for job in self.jobs if job.is_active and job.kill_s is not None]
        for job in self.jobs:
            if job.state == RUNNING and job.limit_s is not None and job.ending is None:
                moments.append(job.limit_s if job.warned else self._warning_s(job) or job.limit_s)
        return min([5.0, *(max(0.0, moment - time.time()) for moment in moments)])

    def _warning_s(self, job: EmulatedJob) -> float | None:
        """Return the time at which a job receives its requested signal."""
        if job.request.signal is None or job.limit_s is None or job.started_s is None:
            return None
        return max(job.limit_s - job.request.signal[1] - self.look_s / 2, job.started_s + self.look_s / 2)

    def _watch_the_clock(self, now: float) -> None:
        for job in self.jobs:
            if job.state == RUNNING and job.limit_s is not None and job.ending is None:
                warning, moment = job.request.signal, self._warning_s(job)
                if warning and moment is not None and not job.warned and now >= moment:
                    job.warned = True
                    self._signal(job, [_CONT, warning[0]], to_batch=warning[2], to_steps=not warning[2])
                if now >= job.limit_s:
                    self.end(job, TIMEOUT, " DUE TO TIME LIMIT")
                    threading.Timer(_SECOND_TERM_S, self._ask_again, (job,)).start()
            if job.is_active and job.kill_s is not None and now >= job.kill_s:
                job.kill_s = None
                threading.Thread(target=self._kill, args=(job,), daemon=True).start()

    def _ask_again(self, job: EmulatedJob) -> None:
        """Send SIGTERM to a job twice at its time limit."""
        with self.changed:
            if job.ending == TIMEOUT and job.is_active:
                self._signal(job, [_TERM], to_batch=True, to_steps=True)

    # ---- a batch script

    def _run_batch(self, job: EmulatedJob) -> None:
        """Run the script, then end the job's steps and its remaining processes."""
        variables = batch_variables(job, self.cluster)
        folder = self.folder / "spool" / f"job{job.number:05d}.{job.restarts}"

        def started(pid: int) -> None:
            with self.changed:
                job.batch_group = pid
                if job.ending is not None:  # a request to end it arrived while it started
                    self._signal(job, [_CONT, _TERM], to_batch=True, to_steps=False)
                self.changed.notify_all()

        code = run_script(job, variables, folder, self.names, started)
        self.close(job, code)

    def close(self, job: EmulatedJob, code: int) -> None:
        """Finish a job whose batch script, or whose srun outside a job, ended with `code`."""
        with self.changed:
            job.state, job.ended_s = COMPLETING, time.time()
            live = [step for step in job.steps if not step.ended]
            if live and job.ending is None:
                self._notify_steps(job, "")
                self._signal(job, [_CONT, _TERM], to_batch=False, to_steps=True)
                job.kill_s = time.time() + self.kill_wait_s
            self.changed.notify_all()
            while any(not step.ended for step in job.steps) and job.kill_s is not None:
                self.changed.wait(timeout=1.0)
        self._kill(job)
        with self.changed:
            self._conclude(job, code)
            self.changed.notify_all()

    def _conclude(self, job: EmulatedJob, code: int) -> None:
        job.exit_code, job.exit_signal = (code, 0) if code >= 0 else (0, -code)
        job.ended_s, job.kill_s, job.batch_group = time.time(), None, None
        end = job.ending or job.requested_end
        if end == PENDING:
            self._back_into_queue(job)
        else:
            job.state, job.reason = end_state(code, end)

    def _back_into_queue(self, job: EmulatedJob) -> None:
        """Requeue a job, which keeps its number and its position in the order of submission."""
        job.state, job.reason, job.restarts = PENDING, "None", job.restarts + 1
        job.allocations, job.steps, job.ending, job.requested_end = [], [], None, None
        job.started_s = job.ended_s = job.limit_s = None

    # ---- ends

    def end(self, job: EmulatedJob, state: str, why: str = "") -> None:
        """Ask a running job to end: send SIGCONT and SIGTERM to all its processes, and SIGKILL later."""
        first, job.ending = job.ending is None, state
        if not first or job.state != RUNNING:
            return
        job.kill_s = time.time() + self.kill_wait_s
        if job.request.script is not None:
            name = f"JOB {job.number} ON {job.allocations[0].node}"
            with contextlib.suppress(OSError):
                write_error(job, f"slurmstepd: error: *** {name} CANCELLED AT {write_moment(time.time())}{why} ***\n")
        self._notify_steps(job, why)
        self._signal(job, [_CONT, _TERM], to_batch=True, to_steps=True)
        self.changed.notify_all()

    def cancel(self, job: EmulatedJob) -> None:
        with self.changed:
            if job.state == PENDING:
                self._cancel_pending(job)
            elif job.state == RUNNING:
                self.end(job, CANCELLED)
            elif job.state == COMPLETING and PENDING in (job.ending, job.requested_end):
                job.ending = CANCELLED
            self.changed.notify_all()

    def _cancel_pending(self, job: EmulatedJob) -> None:
        if job.job_id is None:
            job.job_id = self._number_of_task(job)
        job.state, job.ended_s = CANCELLED, time.time()

    def request_end(self, job: EmulatedJob, state: str) -> None:
        """Record that a job's own script requests CANCELLED or PENDING, even if the script ends before that happens."""
        if job.state == RUNNING and job.requested_end != CANCELLED:
            job.requested_end = state

    def check_requeue(self, job: EmulatedJob) -> None:
        if job.state == PENDING:
            raise SlurmRefusal(f"Job is pending execution for job {job.label}")
        if not job.request.requeue or job.request.script is None:
            raise SlurmRefusal(f"Requested operation is presently disabled for job {job.label}")

    def requeue(self, job: EmulatedJob) -> None:
        with self.changed:
            self.check_requeue(job)
            if job.state == RUNNING and job.ending is None:
                self.end(job, PENDING, " DUE TO JOB REQUEUE")
            elif job.has_ended:
                self._back_into_queue(job)
            elif job.ending is None:
                job.ending = PENDING
            self.changed.notify_all()

    def set_limit(self, job: EmulatedJob, minutes: int | None) -> None:
        job.limit_min = minutes
        if job.started_s is not None:
            job.limit_s = None if minutes is None else job.started_s + 60 * minutes
        self.changed.notify_all()

    def move_end(self, job: EmulatedJob, end_s: float) -> None:
        """Set a new end time for a job, and its limit in minutes accordingly, rounded as in Slurm."""
        assert job.started_s is not None
        minutes = _YEAR_MIN if job.limit_min is None else job.limit_min
        before_s = job.limit_s or job.started_s + 60 * minutes
        job.limit_s, job.limit_min = end_s, minutes + int((end_s - before_s + 30) / 60)
        self.changed.notify_all()

    def check_signal(self, job: EmulatedJob) -> None:
        if job.state != RUNNING:
            raise SlurmRefusal(f"Kill job error on job id {job.label}: Job/step already completing or completed")

    def signal_job(self, job: EmulatedJob, number: int, *, to_batch: bool, full: bool) -> None:
        """Send the signal of scancel --signal: to the steps; with --batch to the script; with --full to everything."""
        with self.changed:
            self.check_signal(job)
            if number == _TERM and not to_batch:
                self._notify_steps(job, "")
            if to_batch:
                if job.batch_group is not None:
                    signal_one(job.batch_group, number)
                return
            self._signal(job, [number], to_batch=full, to_steps=True)

    def _signal(self, job: EmulatedJob, numbers: Sequence[int], *, to_batch: bool, to_steps: bool) -> None:
        """Signal each process once, including those that left their group. Skip srun: its tasks get their own."""
        prefix = mark_of(job, self.cluster)
        live = [step for step in job.steps if not step.ended]
        sruns = [step.srun_pid for step in live]
        for number in numbers:
            if to_batch and to_steps:
                leaders = [pid for step in live for pid in step.groups] + ([job.batch_group] if job.batch_group else [])
                signal_marked(prefix, number, leaders=leaders, but=sruns)
            elif to_batch and job.batch_group is not None:
                signal_one(job.batch_group, number)
            elif to_steps:
                for step in live:
                    signal_marked(f"{prefix}{step.number}/", number, leaders=step.groups)

    def _notify_steps(self, job: EmulatedJob, why: str) -> None:
        for step in job.steps:
            if not step.ended:
                name = f"STEP {job.number}.{step.number} ON {job.allocations[0].node}"
                step.notify(f"slurmstepd: error: *** {name} CANCELLED AT {write_moment(time.time())}{why} ***")

    def _kill(self, job: EmulatedJob) -> None:
        groups = [group for step in job.steps if not step.ended for group in step.groups]
        kill_marked(mark_of(job, self.cluster), groups + ([job.batch_group] if job.batch_group else []))

    # ---- steps

    def begin_step(
        self,
        job: EmulatedJob,
        request: StepRequest,
        srun_pid: int,
        notify: Callable[[str], None],
        busy: Callable[[], None],
    ) -> tuple[JobStep, list[StepAllocation]]:
        """Allocate resources of the job to a step, once other steps have released them."""
        with self.changed:
            reported = False
            while True:
                if job.state != RUNNING or job.ending or job.requested_end:
                    raise SlurmRefusal(
                        f"Unable to create step for job {job.number}: Job/step already completing or completed"
                    )
                allocations = place_step(request, job.allocations, job.busy_cpus(), job.busy_gpus())
                if allocations is not None:
                    break
                if not reported:
                    busy()
                    reported = True
                self.changed.wait(timeout=1.0)
            taken = {} if request.overlap else {allocation.node: allocation.cpus for allocation in allocations}
            gpus = {part.node: part.gpus for part in allocations} if request.reserves_gpus else {}
            step = JobStep(len(job.steps), taken, srun_pid, notify, gpus)
            job.steps.append(step)
            return step, allocations

    def end_step(self, job: EmulatedJob, step: JobStep) -> None:
        """Finish a step whose tasks or srun have ended: kill its remaining processes and release its CPUs."""
        kill_marked(f"{mark_of(job, self.cluster)}{step.number}/", step.groups)
        with self.changed:
            step.ended = True
            self.changed.notify_all()

    # ---- finding

    def mark(self, job: EmulatedJob) -> str:
        return mark_of(job, self.cluster)

    def find_one(self, number: str) -> EmulatedJob:
        """Return the job with exactly that number, as in SLURM_JOB_ID."""
        with self.changed:
            matching = [job for job in self.jobs if job.job_id is not None and str(job.job_id) == number]
        if not matching:
            raise SlurmRefusal(f"Invalid job id specified for job {number}")
        return matching[0]

    def find(self, text: str) -> list[EmulatedJob]:
        """Return jobs by number, 12_3 or array. Raises SlurmRefusal if there is none."""
        with self.changed:
            matching = find_jobs(self.jobs, text)
        if not matching:
            raise SlurmRefusal(f"Invalid job id specified for job {text}")
        return matching

    def wait_for(self, predicate: Callable[[], Any]) -> None:
        """Wait until the condition is true or the daemon stops."""
        with self.changed:
            while not predicate() and not self.stopping:
                self.changed.wait(timeout=1.0)

    def stop(self) -> None:
        """End all jobs, as scancel does, and stop the daemon's loop."""
        with self.changed:
            for job in self.jobs:
                self.cancel(job)
            deadline = time.time() + self.kill_wait_s + 20
            while any(job.is_active for job in self.jobs) and time.time() < deadline:
                self._watch_the_clock(time.time())
                self.changed.wait(timeout=0.2)
            self.stopping = True
            self.changed.notify_all()
        kill_marked(f"{self.cluster}/")


# ---- a batch script's files and process ------------------------------------------------------------------------------


def output_path(job: EmulatedJob) -> Path:
    pattern = job.request.output or ("slurm-%j.out" if job.array_job is None else "slurm-%A_%a.out")
    return _job_file(job, pattern)


def error_path(job: EmulatedJob) -> Path:
    return _job_file(job, job.request.error) if job.request.error else output_path(job)


def input_path(job: EmulatedJob) -> Path:
    return _job_file(job, job.request.input or "/dev/null")


def _job_file(job: EmulatedJob, pattern: str) -> Path:
    node = job.allocations[0].node if job.allocations else ""
    values = pattern_values(job.number, job.request.name, job.request.user, node, job.array_job, job.array_task)
    return Path(job.request.work_dir) / fill_pattern(pattern, values)


def write_error(job: EmulatedJob, text: str) -> None:
    """Append a line to the job's output."""
    with open(error_path(job), "a") as file:
        file.write(text)


def run_script(
    job: EmulatedJob,
    variables: Mapping[str, str],
    folder: Path,
    names: NodeNames | None,
    started: Callable[[int], None],
) -> int:
    """Run the job's script to its end; return its exit code, negative for a signal."""
    with contextlib.ExitStack() as files:
        try:
            process = _start_script(job, variables, folder, names, files)
        except OSError as error:
            return _not_started(job, folder, error)
    started(process.pid)
    try:
        return process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start_script(
    job: EmulatedJob,
    variables: Mapping[str, str],
    folder: Path,
    names: NodeNames | None,
    files: contextlib.ExitStack,
) -> subprocess.Popen[bytes]:
    script = folder / "slurm_script"
    stdin = files.enter_context(input_path(job).open("rb"))
    stdout = _open_output(job, output_path(job), files)
    same = error_path(job) == output_path(job)
    stderr: IO[bytes] | int = subprocess.STDOUT if same else _open_output(job, error_path(job), files)
    work_dir, said = enter(Path(job.request.work_dir))
    if said:
        write_error(job, 2 * said)
    with _one_at_a_time:
        folder.mkdir(parents=True, exist_ok=True)
        script.write_bytes((job.request.script or "").encode(errors="surrogateescape"))
        script.chmod(0o700)
        return subprocess.Popen(
            [str(script), *job.request.arguments],
            cwd=work_dir,
            env={**submitted_environment(job.request), **variables},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            umask=job.request.umask,
            start_new_session=True,
            preexec_fn=None if names is None else lambda: names.enter_if_possible(job.allocations[0].node),
        )


def _open_output(job: EmulatedJob, path: Path, files: contextlib.ExitStack) -> IO[bytes]:
    """Open an output file: truncate it, unless --open-mode=append, then append, because the daemon writes to it too."""
    if not job.request.append:
        path.write_bytes(b"")
    return files.enter_context(path.open("ab"))


def end_state(code: int, end: str | None = None) -> tuple[str, str]:
    """Return the state of a job that has ended, and the reason.

    code: exit code of its script, or a negative signal number. end: the state in which Slurm or a user ended it.
    """
    if end is not None:
        return end, "TimeLimit" if end == TIMEOUT else "None"
    if code == 0:
        return COMPLETED, "None"
    return FAILED, "NonZeroExitCode" if code > 0 else "JobLaunchFailure"


def _not_started(job: EmulatedJob, folder: Path, error: Exception) -> int:
    """Return Slurm's exit code for a job whose script did not start: 2 for a missing interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    no_interpreter = isinstance(error, FileNotFoundError) and str(error.filename).endswith("slurm_script")
    if not no_interpreter:
        return -_NO_FILE
    interpreter = (job.request.script or "").splitlines()[0].removeprefix("#!").split()[0]
    with contextlib.suppress(OSError):
        write_error(job, f"slurmstepd: error: execve(): bad interpreter({interpreter}): No such file or directory\n")
    return 2
