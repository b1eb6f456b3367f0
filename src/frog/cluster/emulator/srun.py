"""srun: starts a program on the nodes of a job, once per task, and returns its output and exit code."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from frog.cluster.emulator import SlurmRefusal, unknown
from frog.cluster.emulator import command_options as opt
from frog.cluster.emulator.command_options import OF_A_JOB, note
from frog.cluster.emulator.emulated_job import StepRequest
from frog.cluster.emulator.job_processes import MARK, enter, kill_marked, signal_marked, task_environment
from frog.cluster.emulator.notation import compress_numbers, fill_pattern, pattern_values
from frog.cluster.emulator.sbatch import make_request, usage
from frog.cluster.emulator.wire import Client, Conversation
from frog.cluster.node_names import NodeNames
from frog.cluster.slurm_options import SRUN
from frog.core.env import child_env, variable
from frog.core.errors import shell_code, signal_code
from frog.core.units import parse_whole

_ONLY_OUTSIDE = ("exclusive", "gpus", "time")
"""Options of an allocation, which the emulator does not support for a step inside a job."""
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGQUIT)
_FORCING = (signal.SIGTERM, signal.SIGHUP)
_TOGETHER_S = 0.3
"""Seconds within which ends of tasks share one line of the report."""
_BLOCK_BYTES = 1 << 16
_output_lock = threading.Lock()


# ---- the command -----------------------------------------------------------------------------------------------------


def srun(client: Client, words: Sequence[str]) -> int:
    """Run a step; return the highest exit code of its tasks."""
    given, program = opt.read_words("srun", words, SRUN)
    if "help" in given:
        print(usage("srun"))
        return 0
    options = opt.srun_variables(child_env()) | given
    opt.export_changes(options.get("export"))
    if not program:
        raise SlurmRefusal("srun: fatal: No command given to execute.", plain=True)
    job = variable("SLURM_JOB_ID")
    if options.get("jobid", job) != job:
        raise unknown(f"--jobid={options['jobid']} of srun: a step in another job")
    if job is not None:
        if outside := [name for name in _ONLY_OUTSIDE if name in options]:
            raise unknown(f"--{outside[0]} of srun inside a job")
        note("srun", options, others=OF_A_JOB)
        return _step(client, job, dict(child_env()), options, program)
    return _alone(client, options, program)


def _alone(client: Client, options: Mapping[str, str | None], program: Sequence[str]) -> int:
    """Request a job, run the step in it, and release the job."""
    request = make_request(options, default_name=Path(program[0]).name, program="srun")
    if request.node_names:
        options = {**options, "nodelist": ",".join(request.node_names)}  # perhaps fewer than the option named
    allocation = client.open("allocate", request=asdict(request), partition=options.get("partition"))
    code = 1
    try:
        answer = allocation.hear()
        if "queued" in answer:
            _say(f"job {answer['queued']} queued and waiting for resources")
            answer = allocation.hear()
            _say(f"job {answer['job']} has been allocated resources")
        base = {**child_env(), **answer["variables"]}
        code = _step(client, str(answer["job"]), base, options, program)
        allocation.send(code=code)
    finally:
        allocation.close()
    return code


def _step(
    client: Client, job: str, base: dict[str, str], options: Mapping[str, str | None], program: Sequence[str]
) -> int:
    base |= opt.export_changes(options.get("export"))
    if options.get("job-name"):
        base["SLURM_JOB_NAME"] = options["job-name"] or ""
    wanted = _wanted(options, base)
    opt.count(options, "wait", least=0)
    cpus = opt.count(options, "cpus-per-task")
    conversation = client.open("step", job=job, step=asdict(wanted), label="label" in options, cpus=cpus)
    try:
        answer = _granted(conversation, job)
        return StepRun(answer, options, list(program), base, conversation).run()
    finally:
        conversation.close()


def _granted(conversation: Conversation, job: str) -> dict[str, Any]:
    """Wait for the step's resources, which other steps may still use."""
    answer = conversation.hear()
    if "busy" in answer:
        _say(f"Job {job} step creation temporarily disabled, retrying (Requested nodes are busy)")
        answer = conversation.hear()
        _say(f"Step created for job {job}")
    return answer


def _wanted(options: Mapping[str, str | None], env: Mapping[str, str]) -> StepRequest:
    """Return the number of tasks and the nodes, from the options or otherwise from the job's variables."""
    job_nodes = int(env.get("SLURM_JOB_NUM_NODES") or env["SLURM_NNODES"])
    num_nodes = opt.count(options, "nodes") or job_nodes
    ntasks = opt.count(options, "ntasks") or _number(env, "SLURM_NTASKS")
    per_node = opt.count(options, "ntasks-per-node") or _number(env, "SLURM_NTASKS_PER_NODE")
    if ntasks is None:
        ntasks = num_nodes * (per_node or 1)
    elif "nodes" not in options and ntasks < num_nodes:
        _say(f"Warning: can't run {ntasks} processes on {num_nodes} nodes, setting nnodes to {ntasks}")
        num_nodes = ntasks
    if per_node is not None and ntasks > num_nodes and ntasks != per_node * num_nodes:
        _say(
            f"Warning: can't honor --ntasks-per-node set to {per_node} which doesn't match the requested tasks "
            f"{ntasks} with the number of requested nodes {num_nodes}. Ignoring --ntasks-per-node."
        )
    return StepRequest(
        ntasks=ntasks,
        num_nodes=num_nodes,
        node_names=tuple(opt.hosts(options)),
        cpus_per_task=opt.count(options, "cpus-per-task") or 1,
        overlap="overlap" in options,
        exact="exact" in options or "cpus-per-task" in options,
        per_node=per_node,
        gpus_per_task=opt.gpus_per_task(options),
        all_gpus="SLURM_GPUS_PER_NODE" in env,
        gpus_per_node=opt.gpus(options)[0] or None,
    )


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return parse_whole(text)


def _say(text: str) -> None:
    print(f"srun: {text}", file=sys.stderr, flush=True)


# ---- the step's tasks ------------------------------------------------------------------------------------------------


class StepRun:
    """One step, from the start of its first task to the end of its last task."""

    def __init__(
        self,
        answer: Mapping[str, Any],
        options: Mapping[str, str | None],
        program: Sequence[str],
        base: Mapping[str, str],
        conversation: Conversation,
    ) -> None:
        self._answer = answer
        self._options = options
        self._program = list(program)
        self._base = base
        self._conversation = conversation
        self._tasks: list[dict[str, Any]] = list(answer["tasks"])
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pumps: list[threading.Thread] = []
        self._happened: queue.SimpleQueue[tuple[str, Any, int]] = queue.SimpleQueue()
        self._codes: dict[int, int] = {}
        self._aborted = False
        self._kill_at: float | None = None
        self._interrupted_at: float | None = None
        self._groups: list[int] = []

    @property
    def _name(self) -> str:
        return f"StepId={self._answer['job']}.{self._answer['step']}"

    @property
    def _mark(self) -> str:
        return str(self._answer["variables"][MARK])

    def run(self) -> int:
        """Run the step to its end; return the highest exit code, 128 + number for a signal."""
        for number in (*_FORWARDED, *_FORCING, signal.SIGINT):
            signal.signal(number, lambda number, _: self._happened.put(("signal", number, 0)))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._start()
        threading.Thread(target=self._listen, daemon=True).start()
        while len(self._codes) < len(self._tasks):
            self._handle(self._next())
        for thread in self._pumps:  # an orphan of a task may still write
            while thread.is_alive():
                self._handle(self._next(timeout=0.05))
        signals = {signal_code(signal.SIGTERM), signal_code(signal.SIGKILL)}
        if not self._aborted and signals & set(self._codes.values()):
            self._say(f"Force Terminated {self._name}")
        self._leave()
        return max(self._codes.values())

    # ---- start

    def _start(self) -> None:
        folder = Path(self._options.get("chdir") or ".").resolve()
        files = TaskFiles(self._answer, self._options, folder)
        inputs: list[int] = []
        try:
            for task in self._tasks:
                self._start_task(task, files, folder, inputs)
        finally:
            files.close()
        if inputs:
            broadcast(0, inputs)
        with contextlib.suppress(OSError):
            self._conversation.send(groups=self._groups)
        for rank, process in self._processes.items():
            threading.Thread(target=self._wait, args=(rank, process), daemon=True).start()

    def _start_task(self, task: Mapping[str, Any], files: TaskFiles, folder: Path, inputs: list[int]) -> None:
        rank, with_gpus = int(task["rank"]), bool(self._answer["with_gpus"])
        env = task_environment(self._base, self._answer["variables"], task["variables"], with_gpus=with_gpus)
        label = self._label(rank)
        work_dir, said = enter(folder)
        for line in said.splitlines() * (1 if task["variables"]["SLURM_LOCALID"] != "0" else 2):
            print(f"{label}{line}", file=sys.stderr, flush=True)
        given_in, given_out, given_err = files.input(task), files.output(task), files.error(task)
        try:
            process = subprocess.Popen(
                self._program,
                cwd=work_dir,
                env=env,
                stdin=subprocess.PIPE if given_in is None else given_in,
                stdout=subprocess.PIPE if label or given_out is None else given_out,
                stderr=subprocess.PIPE if label or given_err is None else given_err,
                start_new_session=True,
                preexec_fn=self._node_entrance(str(task["node"])),
            )
        except OSError as error:
            name = f"{folder}/{self._program[0]}" if "/" in self._program[0] else self._program[0]
            self._say(f"execve(): {name}: {error.strerror}", who=f"{label}slurmstepd: error")
            self._happened.put(("exit", rank, error.errno or 1))
            return
        self._processes[rank] = process
        self._groups.append(process.pid)
        if process.stdin is not None:
            inputs.append(os.dup(process.stdin.fileno()))
            process.stdin.close()
        for stream, own, given in ((process.stdout, 1, given_out), (process.stderr, 2, given_err)):
            if stream is not None:
                target = os.dup(own if given is None else given)
                self._pumps.append(pump(os.dup(stream.fileno()), target, label))
                stream.close()

    def _node_entrance(self, node: str) -> Callable[[], None] | None:
        """Return the function that gives a new process its node's host name, and the names of the others."""
        hosts = self._answer["hosts"]
        return None if hosts is None else partial(NodeNames(Path(hosts)).enter_if_possible, node)

    def _label(self, rank: int) -> str:
        return f"{rank:{len(str(len(self._tasks) - 1))}d}: " if "label" in self._options else ""

    # ---- while it runs

    def _wait(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self._happened.put(("exit", rank, process.wait()))

    def _listen(self) -> None:
        """Handle the daemon's messages until it disconnects."""
        with contextlib.suppress(SlurmRefusal, ValueError, OSError):
            while True:
                answer = self._conversation.hear()
                if answer.get("closed"):
                    self._happened.put(("closed", "", 0))
                    return
                if "notice" in answer:
                    self._happened.put(("notice", answer["notice"], 0))
        self._happened.put(("lost", "", 0))

    def _next(self, timeout: float | None = None) -> tuple[str, Any, int] | None:
        if self._kill_at is not None:
            left = max(0.0, self._kill_at - time.monotonic())
            timeout = left if timeout is None else min(left, timeout)
        try:
            return self._happened.get(timeout=timeout)
        except queue.Empty:
            return None

    def _handle(self, event: tuple[str, Any, int] | None) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            kill_marked(self._mark, self._groups)
        if event is None:
            return
        kind, what, code = event
        if kind == "exit":
            self._on_exits(what, code)
        elif kind == "signal":
            self._on_signal(what)
        elif kind == "notice":
            self._abort(what)
        elif kind == "lost":
            self._say("error: the emulator's daemon has ended, which ends this step")
            kill_marked(self._mark, self._groups)

    def _on_exits(self, rank: int, code: int) -> None:
        """Record ended tasks, grouped by time; end the others if one failed."""
        ended = {rank: code}
        deadline = time.monotonic() + _TOGETHER_S
        later = []
        while len(self._codes) + len(ended) < len(self._tasks) and (left := deadline - time.monotonic()) > 0:
            event = self._next(timeout=left)
            if event is not None and event[0] == "exit":
                ended[event[1]] = event[2]
            elif event is not None:
                later.append(event)
        for event in later:
            self._happened.put(event)
        self._codes |= {rank: shell_code(code) for rank, code in ended.items()}
        self._report_codes({rank: code for rank, code in ended.items() if code})
        if any(ended.values()) and self._kills_on_bad_exit() and len(self._codes) < len(self._tasks):
            self._say(f"launch/slurm: _step_signal: Terminating {self._name}")
            self._abort(
                f"slurmstepd: error: *** STEP {self._name[7:]} ON {self._tasks[0]['node']} CANCELLED ***", quiet=True
            )
            for number in (signal.SIGCONT, signal.SIGTERM):
                signal_marked(self._mark, number, leaders=self._living())
            self._kill_at = time.monotonic() + float(self._answer["kill_wait_s"])
        self._wait_after_first_end()

    def _living(self) -> list[int]:
        return [process.pid for rank, process in self._processes.items() if rank not in self._codes]

    def _kills_on_bad_exit(self) -> bool:
        return "kill-on-bad-exit" in self._options and self._options["kill-on-bad-exit"] != "0"

    def _wait_after_first_end(self) -> None:
        """With --wait=S, end the other tasks S seconds after the first task's end."""
        seconds = int(self._options.get("wait") or 0)
        if seconds and self._kill_at is None and len(self._codes) < len(self._tasks):
            self._kill_at = time.monotonic() + seconds

    def _on_signal(self, number: int) -> None:
        if number in _FORCING:
            self._say("forcing job termination")
            self._abort("")
            kill_marked(self._mark, self._groups)
        elif number == signal.SIGINT:
            self._on_interrupt()
        else:
            signal_marked(self._mark, number, leaders=self._living())

    def _on_interrupt(self) -> None:
        """Handle Ctrl-C: once prints the step's state, twice within a second forwards it, three times ends the step."""
        now = time.monotonic()
        before, self._interrupted_at = self._interrupted_at, now
        if before is None or now - before > 1:
            ranks = [task["rank"] for task in self._tasks if task["rank"] not in self._codes]
            self._say("interrupt (one more within 1 sec to abort)")
            self._say(f"{self._name} task{_several(ranks)}: running")
        elif not self._aborted:
            self._say(f"sending Ctrl-C to {self._name}")
            self._aborted = True
            signal_marked(self._mark, signal.SIGINT, leaders=self._living())
            self._kill_at = now + 1
        else:
            kill_marked(self._mark, self._groups)

    def _abort(self, notice: str, *, quiet: bool = False) -> None:
        if not self._aborted and not quiet:
            self._say(
                f"Job step aborted: Waiting up to {self._answer['kill_wait_s'] + 2:.0f} seconds for job step to finish."
            )
        self._aborted = True
        if notice:
            print(notice, file=sys.stderr, flush=True)

    # ---- the end

    def _report_codes(self, codes: Mapping[int, int]) -> None:
        nodes = {task["rank"]: task["node"] for task in self._tasks}
        for (node, code), group in groupby(sorted(codes), key=lambda rank: (nodes[rank], codes[rank])):
            said = f"Exited with exit code {code}" if code > 0 else (signal.strsignal(-code) or "").split(":")[0]
            self._say(f"error: {node}: task{_several(list(group))}: {said}")

    def _leave(self) -> None:
        """Report the end to the daemon, and wait until it has cleaned up the step."""
        with contextlib.suppress(OSError):
            self._conversation.send(ended=True)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                event = self._next(timeout=1.0)
                if event is not None and event[0] in ("closed", "lost"):
                    return

    def _say(self, text: str, who: str = "srun") -> None:
        with contextlib.suppress(OSError):
            print(f"{who}: {text}", file=sys.stderr, flush=True)


def _several(ranks: Sequence[int]) -> str:
    return f"{'' if len(ranks) == 1 else 's'} {compress_numbers(ranks)}"


# ---- the tasks' input and output -------------------------------------------------------------------------------------


class TaskFiles:
    """Opens each file of a step once, even if several tasks share it."""

    def __init__(self, answer: Mapping[str, Any], options: Mapping[str, str | None], folder: Path) -> None:
        self._answer = answer
        self._options = options
        self._folder = folder
        self._append = opt.appends(options)
        self._open: dict[Path, int] = {}

    def output(self, task: Mapping[str, Any]) -> int | None:
        return self._writable("output", task)

    def error(self, task: Mapping[str, Any]) -> int | None:
        """Return the value of --error, or otherwise of --output."""
        return self._writable("error" if "error" in self._options else "output", task)

    def input(self, task: Mapping[str, Any]) -> int | None:
        path = self._path("input", task)
        return None if path is None else self._descriptor(path, os.O_RDONLY, "stdin")

    def _writable(self, name: str, task: Mapping[str, Any]) -> int | None:
        """Return a file, or None if srun itself must forward the output."""
        path = self._path(name, task)
        if path is None:
            return None
        empty = 0 if self._append else os.O_TRUNC
        return self._descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | empty, f"std{name[:3]}")

    def _path(self, name: str, task: Mapping[str, Any]) -> Path | None:
        text = self._options.get(name)
        if text is None or text.lower().startswith("all") or text.startswith("-"):
            return None  # Slurm treats all.txt as "all"
        if text.lower() == "none":
            return Path(os.devnull)
        if text.isdigit():
            raise unknown(f"--{name}={text} of srun: one task's number")
        answer = self._answer
        values = pattern_values(
            answer["job"], answer["name"], answer["user"], task["node"], answer["array_job"], answer["array_task"]
        )
        step = str(answer["step"])
        values |= {"s": step, "J": f"{values['j']}.{step}", "t": str(task["rank"]), "n": str(task["node_rank"])}
        return self._folder / fill_pattern(text, values)

    def _descriptor(self, path: Path, flags: int, what: str) -> int:
        if path not in self._open:
            try:
                self._open[path] = os.open(path, flags, 0o666)
            except OSError as error:
                raise SlurmRefusal(f"Could not open {what} file {path}: {error.strerror}") from None
        return self._open[path]

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def pump(source: int, target: int, label: str) -> threading.Thread:
    """Forward a task's output until every writer has closed the pipe, with `label`, if any, before each line.

    Then closes both ends.
    """
    thread = threading.Thread(target=_pump, args=(source, target, label.encode()), daemon=True)
    thread.start()
    return thread


def _pump(source: int, target: int, label: bytes) -> None:
    rest = b""
    while block := _read(source):
        if not label:
            _write(target, block)
            continue
        *lines, rest = (rest + block).split(b"\n")
        _write(target, b"".join(label + line + b"\n" for line in lines))
    if rest:
        _write(target, label + rest + b"\n")
    os.close(source)
    os.close(target)


def _read(source: int) -> bytes:
    try:
        return os.read(source, _BLOCK_BYTES)
    except OSError:
        return b""


def _write(target: int, data: bytes) -> None:
    with _output_lock, contextlib.suppress(OSError):
        while data:
            data = data[os.write(target, data) :]


def broadcast(source: int, targets: Sequence[int]) -> None:
    """Copy the input from `source` to every task. Each task has a queue, so a slow task does not delay the others."""
    queues: list[queue.SimpleQueue[bytes]] = [queue.SimpleQueue() for _ in targets]
    for own, target in zip(queues, targets, strict=True):
        threading.Thread(target=_feed, args=(own, target), daemon=True).start()

    def read() -> None:
        while True:
            block = _read(source)
            for own in queues:
                own.put(block)
            if not block:
                return

    threading.Thread(target=read, daemon=True).start()


def _feed(own: queue.SimpleQueue[bytes], target: int) -> None:
    with contextlib.suppress(OSError):
        while block := own.get():
            while block:
                block = block[os.write(target, block) :]
    os.close(target)
