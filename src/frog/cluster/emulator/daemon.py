"""The daemon: listens on the loopback interface and answers the commands. `cluster.up` starts it."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import queue
import secrets
import signal
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from frog.cluster.emulator import SlurmRefusal, unknown
from frog.cluster.emulator.controller import SlurmController, error_path, input_path, output_path
from frog.cluster.emulator.emulated_job import (
    CANCELLED,
    PENDING,
    RUNNING,
    EmulatedJob,
    JobRequest,
    JobStep,
    Node,
    StepAllocation,
    StepRequest,
)
from frog.cluster.emulator.job_processes import (
    MARK,
    job_variables,
    mark_of,
    step_variables,
    task_gpu_variables,
    task_variables,
)
from frog.cluster.emulator.notation import compress_hosts, parse_moment, parse_time_limit
from frog.cluster.emulator.scheduling import (
    check_step_gpus,
    dependency_text,
    free_resources,
)
from frog.cluster.node_names import NodeNames
from frog.cluster.simulated_cluster import CLUSTER_FILE, EmulatorFile, SiteNames
from frog.core.processes import is_alive
from frog.core.schema import decode, write_typed

_UP_S = 30.0
_ASKER_S = 2.0
"""Longest time in seconds that a command in a job may take to end after its answer."""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, controller: SlurmController, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.controller = controller
        self.token = token


class _Handler(socketserver.StreamRequestHandler):
    """Handle one connection: a request, its answers and, for a step, srun's messages while it runs."""

    server: _Server

    def handle(self) -> None:
        try:
            line = self.rfile.readline()
            request = decode(line or b"{}", dict[str, Any], "the request", error=SlurmRefusal)
            if not hmac.compare_digest(str(request.get("token", "")).encode(), self.server.token.encode()):
                return
            name = str(request.get("act"))
            act: Callable[[dict[str, Any]], dict[str, Any] | None] | None = getattr(self, f"_do_{name}", None)
            if act is None:
                raise SlurmRefusal(f"the emulator's daemon does not support {name}")
            answer = act(request)
            if answer is not None:
                self._send(**answer)
        except SlurmRefusal as error:
            self._send(error=error.what, code=error.exit_code, hint=error.hint)
        except (ConnectionError, BrokenPipeError):
            return

    def _send(self, **fields: Any) -> None:
        try:
            self.wfile.write((json.dumps(fields) + "\n").encode())
        except OSError:  # the client has disconnected
            return

    @property
    def _controller(self) -> SlurmController:
        return self.server.controller

    # ---- requests of the commands

    def _do_submit(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._controller.submit(JobRequest.from_wire(request["request"]), request["partition"])
        return {"job": job.number}

    def _do_wait(self, request: dict[str, Any]) -> dict[str, Any]:
        jobs = self._controller.find(request["job"])
        self._controller.wait_for(lambda: all(job.has_ended for job in jobs))
        return {"code": max(job.wait_code for job in jobs)}

    def _do_look(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return all data that squeue, sinfo and scontrol show print."""
        with self._controller.changed:
            return snapshot(self._controller)

    def _do_cancel(self, request: dict[str, Any]) -> None:
        jobs = self._find(request["job"])
        self._after_the_asker(jobs, request, self._controller.cancel, CANCELLED)

    def _do_signal(self, request: dict[str, Any]) -> None:
        def send(job: EmulatedJob) -> None:
            self._controller.signal_job(job, request["number"], to_batch=request["batch"], full=request["full"])

        jobs = self._find(request["job"])
        for job in jobs:
            self._controller.check_signal(job)
        self._after_the_asker(jobs, request, send)

    def _do_requeue(self, request: dict[str, Any]) -> None:
        jobs = self._find(request["job"])
        for job in jobs:
            self._controller.check_requeue(job)
        self._after_the_asker(jobs, request, self._controller.requeue, PENDING)

    def _after_the_asker(
        self,
        jobs: Sequence[EmulatedJob],
        request: dict[str, Any],
        act: Callable[[EmulatedJob], None],
        requested_end: str | None = None,
    ) -> None:
        """Apply an action to jobs. A command inside one of them gets its answer first, and its own signal spares it.

        By then the job may have ended or restarted: `requested_end` is the state that it must still reach.
        """
        within = any(str(request.get("mark", "")).startswith(self._controller.mark(job)) for job in jobs)
        with self._controller.changed:
            before = [(job.restarts, job.state) for job in jobs]
            if within and requested_end is not None:
                for job in jobs:
                    self._controller.request_end(job, requested_end)
        if within:
            self._send()
            deadline = time.monotonic() + _ASKER_S
            while is_alive(int(request["asker"])) and time.monotonic() < deadline:
                time.sleep(0.01)
        for job, (restarts, state) in zip(jobs, before, strict=True):
            with self._controller.changed, contextlib.suppress(SlurmRefusal):  # it may have ended in the meantime
                if not within or (job.restarts == restarts and job.state in (state, RUNNING)):
                    act(job)
        if not within:
            self._send()

    def _do_hold(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._controller.changed:
            for job in self._find(request["job"]):
                if job.state != PENDING:
                    raise SlurmRefusal(f"Job is no longer pending execution for job {job.label}")
                job.held = request["held"]
            self._controller.changed.notify_all()
        return {}

    def _do_update(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change the end time of a job, for scontrol update."""
        controller = self._controller
        with controller.changed:
            for job in self._find(request["job"]):
                if job.state not in (PENDING, RUNNING):
                    raise SlurmRefusal(f"Job has already finished for job {job.label}")
                if request["name"] == "timelimit":
                    controller.set_limit(job, parse_time_limit(request["value"]))
                elif job.state == RUNNING:
                    controller.move_end(job, _moment(request["value"]))
                else:
                    raise unknown(f"EndTime of job {job.label}, which is not running yet")
        return {}

    def _find(self, text: str) -> list[EmulatedJob]:
        return self._controller.find(text)

    # ---- srun

    def _do_allocate(self, request: dict[str, Any]) -> None:
        """Allocate a job to an srun outside a job, for as long as its connection lasts."""
        controller = self._controller
        job = controller.submit(JobRequest.from_wire(request["request"]), request["partition"])
        controller.wait_for(lambda: job.state != PENDING or job.reason not in ("None",))
        if job.state == PENDING:
            self._send(queued=job.number)
            controller.wait_for(lambda: job.state != PENDING or self._is_gone())
        if job.state != RUNNING:
            controller.cancel(job)
            self._send(error=f"Job allocation {job.number} has been revoked", code=1)
            return
        self._send(job=job.number, variables=allocation_variables(controller, job))
        message = self._receive()
        controller.close(job, int(message.get("code", 1)))

    def _is_gone(self) -> bool:
        """True if the client has disconnected; does not wait."""
        self.connection.setblocking(False)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.setblocking(True)

    def _do_step(self, request: dict[str, Any]) -> None:
        """Run a step for as long as its srun's connection lasts."""
        controller = self._controller
        job = controller.find_one(request["job"])
        wanted = StepRequest(**{**request["step"], "node_names": tuple(request["step"]["node_names"])})
        check_step_gpus(wanted, job)
        try:
            step, parts = controller.begin_step(
                job, wanted, request["asker"], lambda text: self._send(notice=text), lambda: self._send(busy=True)
            )
        except SlurmRefusal as error:
            raise SlurmRefusal(error.what.replace("{job}", str(job.number))) from None
        try:
            answer = step_answer(
                controller, job, step, parts, wanted.gpus_per_task, label=request["label"], cpus=request["cpus"]
            )
            self._send(**answer)
            while message := self._receive():
                step.groups += message.get("groups", [])
                if message.get("ended"):
                    break
        finally:
            controller.end_step(job, step)
        self._send(closed=True)

    def _receive(self) -> dict[str, Any]:
        """Return srun's next message; empty if it has disconnected."""
        try:
            line = self.rfile.readline()
        except OSError:
            line = b""
        return decode(line, dict[str, Any], "srun's message", error=SlurmRefusal) if line else {}


def _moment(text: str) -> float:
    try:
        return parse_moment(text)
    except ValueError:
        raise SlurmRefusal(f"Invalid time specification: {text}") from None


# ---- answers ---------------------------------------------------------------------------------------------------------


def snapshot(controller: SlurmController) -> dict[str, Any]:
    """Return the jobs in order of submission, and the nodes."""
    return {
        "cluster": controller.cluster,
        "partitions": controller.site.all_partitions,
        "jobs": [_job_table(job, controller.jobs) for job in controller.jobs],
        "nodes": _node_tables(controller),
    }


def _job_table(job: EmulatedJob, jobs: Sequence[EmulatedJob]) -> dict[str, Any]:
    request = job.request
    now = time.time()
    began = job.started_s
    table = {
        "id": job.number,
        "own_id": job.job_id,
        "array_job": job.array_job,
        "array_task": job.array_task,
        "at_once": request.array[2] if request.array else None,
        "label": job.label,
        "name": request.name,
        "user": request.user,
        "state": job.state,
        "reason": job.reason,
        "dependency": dependency_text(job, jobs),
        "requeue": request.requeue and request.script is not None,
        "restarts": job.restarts,
        "is_batch": request.script is not None,
        "exit": f"{job.exit_code}:{job.exit_signal}",
        "elapsed_s": 0 if began is None else (job.ended_s or now) - began,
        "limit_min": job.limit_min,
        "submitted_s": job.submitted_s,
        "started_s": began,
        "ended_s": job.ended_s or job.limit_s,
        "partition": request.partition,
        "account": request.account,
        "comment": request.comment,
        "hosts": compress_hosts(job.node_names),
        "first_host": job.node_names[0] if job.allocations else None,
        "num_nodes": len(job.allocations) or _nodes_asked(job),
        "num_cpus": sum(allocation.cpus for allocation in job.allocations)
        or (request.ntasks or 1) * request.cpus_of_task,
        "num_tasks": request.ntasks or sum(allocation.tasks for allocation in job.allocations) or 1,
        "cpus_per_task": request.cpus_of_task,
        "command": request.command,
        "work_dir": request.work_dir,
        "steps": [{"number": step.number, "groups": step.groups, "ended": step.ended} for step in job.steps],
    }
    return table | _file_names(job)


def _nodes_asked(job: EmulatedJob) -> int:
    request = job.request
    per_node = request.ntasks_per_node
    return request.nodes or (-(-request.ntasks // per_node) if request.ntasks and per_node else 1)


def _file_names(job: EmulatedJob) -> dict[str, str]:
    if job.request.script is None:
        return {}
    paths = {"stderr": error_path(job), "stdin": input_path(job), "stdout": output_path(job)}
    return {name: str(path) for name, path in paths.items()}


def _node_tables(controller: SlurmController) -> list[dict[str, Any]]:
    tables = []
    for part in free_resources(controller.nodes, controller.jobs):
        busy = [job for job in controller.jobs if job.is_active and part.node.name in job.node_names]
        state = "idle"
        if busy:
            state = "allocated" if part.cpus == 0 else "mixed"
            if all(job.state == "COMPLETING" for job in busy):
                state = "completing"
        tables.append(
            {
                "name": part.node.name,
                "state": state,
                "cpus": part.node.cpus,
                "cpus_used": part.node.cpus - part.cpus,
                "gpus": part.node.gpus,
                "gpus_used": part.node.gpus - len(part.gpus),
            }
        )
    return tables


def allocation_variables(controller: SlurmController, job: EmulatedJob) -> dict[str, str]:
    """Return the variables that let an srun outside a job act as if inside one."""
    return {**job_variables(job, controller.cluster), MARK: mark_of(job, controller.cluster)}


def step_answer(
    controller: SlurmController,
    job: EmulatedJob,
    step: JobStep,
    parts: Sequence[StepAllocation],
    gpus_per_task: int | None,
    *,
    label: bool,
    cpus: int | None,
) -> dict[str, Any]:
    """Return the node and the variables of each task of a step."""
    with_gpus = bool(job.request.gpus_per_node or job.request.gpus_per_task or gpus_per_task)
    tasks, rank = [], 0
    for node_rank, part in enumerate(parts):
        for local_rank in range(part.tasks):
            variables = task_variables(part, node_rank, local_rank, rank)
            if with_gpus:
                variables |= task_gpu_variables(part.gpus, gpus_per_task or 0, local_rank, part.tasks)
            tasks.append({"rank": rank + local_rank, "node": part.node, "node_rank": node_rank, "variables": variables})
        rank += part.tasks
    shared = step_variables(job, controller.cluster, step.number, parts, label=label, cpus_per_task=cpus)
    return {
        "job": job.number,
        "step": step.number,
        "array_job": job.array_job,
        "array_task": job.array_task,
        "name": job.request.name,
        "user": job.request.user,
        "variables": shared,
        "tasks": tasks,
        "with_gpus": with_gpus,
        "kill_wait_s": controller.kill_wait_s,
        "hosts": None if controller.names is None else str(controller.names.hosts),
    }


# ---- the process -----------------------------------------------------------------------------------------------------


def main() -> int:
    """Start a daemon in the background and return when it accepts connections; exit code 1 if it does not start."""
    folder, shape = Path(sys.argv[1]), json.loads(sys.argv[2])
    child = os.fork()
    if child == 0:
        os.setsid()
        os._exit(_serve(folder, shape))
    deadline = time.monotonic() + _UP_S
    while not (folder / CLUSTER_FILE).exists():
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            if not ended:
                os.kill(child, signal.SIGKILL)
            return 1
        time.sleep(0.02)
    return 0


def _serve(folder: Path, shape: dict[str, Any]) -> int:
    """Answer requests until SIGTERM or SIGINT. Write the address to the cluster's file once the daemon listens."""
    try:
        _run(folder, shape)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def _run(folder: Path, shape: dict[str, Any]) -> None:
    cluster, token = shape["cluster"], secrets.token_hex(16)
    nodes = [
        Node(f"node{number}", shape["cpus_per_node"], shape["gpus_per_node"]) for number in range(1, shape["nodes"] + 1)
    ]
    # Runs derive their ports from job ids, so two clusters of one machine need different ids. Ids of five
    # digits are not mistaken for years or counts.
    first_job = 10_000 + secrets.randbelow(9000)
    controller = SlurmController(folder, cluster, nodes, first_job, shape["kill_wait_s"])
    controller.look_s = shape["look_s"]
    controller.site = SiteNames(partitions=tuple(shape["partitions"]), features=tuple(shape["features"]))
    if shape["hosts"] is not None:
        controller.names = NodeNames(Path(shape["hosts"]))
    stop: queue.SimpleQueue[int] = queue.SimpleQueue()  # unlike an Event, safe to use in a signal handler
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop.put(number))
    with _Server(controller, token) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), name="server", daemon=True).start()
        threading.Thread(target=controller.run, name="scheduler", daemon=True).start()
        port = int(server.server_address[1])
        own = EmulatorFile(kind="emulator", port=port, token=token, pid=os.getpid(), cluster=cluster)
        write_typed(folder / CLUSTER_FILE, own)
        while folder.is_dir():  # otherwise the cluster's folder was removed: end its jobs
            with contextlib.suppress(queue.Empty):
                stop.get(timeout=1.0)
                break
        controller.stop()
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
