"""torchrun with machine-readable reports: `python -m frog.launch.torchrun.agent REPORTS.jsonl <torchrun's arguments>`.

The launcher starts this in place of the `torchrun` script. It is the same agent, but it writes the ranks that it starts
and the failures that it detects to REPORTS.jsonl instead of logging and raising them. It also forks the ranks of Frog's
programs from a process that has torch loaded (frog.launch.torchrun.forkserver), and connects the output of other
programs to the launcher (frog.launch.rank_output).

If an elastic run loses a rank, the agent does not stop the others. With `frog run --replace N`, it starts a new process
in place of the lost rank, which joins the run as `frog join` does.

Before torchrun ends the other ranks of a failed program, the agent asks their observers for what they know
(`ask_others`): a rank that is ended leaves no record of its collectives, and the first failure is often not the cause,
as when gloo ends the process that received another rank's mistake.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import parse_args, run

from frog.core.env import (
    MAY_MEET,
    SURVIVES,
    launch_dir,
    most_replaced,
    run_dir,
    set_attempt,
    start_method,
    survives_losses,
)
from frog.core.errors import ASKED_TO_STOP, CommError, LaunchError, UsageError, signal_code
from frog.core.processes import NOT_MET, kill_group, leave, leave_with_parent
from frog.core.runs.observed import Status, read_statuses, write_request
from frog.launch.rank_output import pipe_path
from frog.launch.torchrun.elastic import (
    TESTED,
    Ranks,
    check_agent,
    check_state,
    fork_ranks_with,
    missing_to_fork,
    pipe_output,
    processes_of,
    rendezvous_round,
    unsupported,
    use_agent,
)
from frog.launch.torchrun.error_file import read_error
from frog.launch.torchrun.forkserver import start_fork_server

_JOIN = "frog.train.elastic.join"
"""Program of a rank that joins an active run."""
_LONGEST_TO_LEAVE = timedelta(seconds=10)
_WAIT_S, _POLL_S = 5.0, 0.05
"""Longest wait for the observers of a failed program. They look for requests twice a second, and answer in a tenth of
one."""


class _ReportingAgent(LocalElasticAgent):
    """torchrun's agent that also reports the worlds it starts and the failures it detects."""

    reports: Path
    pids: tuple[int, ...] = ()
    """Process ids of the running ranks. Each leads its own process group."""
    _attempt: int

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        check_state(self)
        # All nodes know the same round; a node that joins late does not know the number of earlier worlds.
        number = rendezvous_round(worker_group)
        self._attempt = number if number is not None else self._own_restarts
        set_attempt(self._attempt)

    @property
    def _own_restarts(self) -> int:
        return int(self._worker_group.spec.max_restarts - self._remaining_restarts)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        if (folder := launch_dir()) is not None:
            (folder / SURVIVES).unlink(missing_ok=True)  # the new world creates it again when its ranks have connected
        pids: dict[int, Any] = super()._start_workers(worker_group)
        _ReportingAgent.pids = tuple(pids.values())
        self._ended_ns: dict[int, int] = {}
        self._left: list[int] = []
        self._asked = False
        self._write(
            "world",
            node_rank=worker_group.group_rank,
            ranks=[worker.global_rank for worker in worker_group.workers],
            world_size=worker_group.workers[0].world_size,
            master_addr=worker_group.master_addr,
            master_port=worker_group.master_port,
            pids=[pids[worker.local_rank] for worker in worker_group.workers],
        )
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._note_ends(worker_group)
        if survives_losses() and self._report_losses(worker_group):
            return RunResult(state=WorkerState.HEALTHY)
        self._ask_others(worker_group)
        result: RunResult = super()._monitor_workers(worker_group)
        for rank, failure in result.failures.items():
            if failure.exitcode == UsageError.exit_code:  # a restart does not fix a usage error
                self._remaining_restarts = 0
            ended_ns = self._ended_ns.get(failure.pid) or time.time_ns()
            said = {"node_rank": worker_group.group_rank, "left": self._left, **_describe(rank, failure)}
            self._write("exit", ended_ns, **said)
        return result

    def _ask_others(self, worker_group: WorkerGroup) -> None:
        """Let the observers of the other ranks write what they know, once a rank has failed."""
        folder, processes = run_dir(), {process.pid: process for process in processes_of(self)}
        if folder is None or self._asked or not any(process.poll() for process in processes.values()):
            return
        self._asked = True
        ranks = {worker.id: worker.global_rank for worker in worker_group.workers}

        def running() -> set[int]:
            self._note_ends(worker_group)
            return {ranks[pid] for pid, process in processes.items() if pid in ranks and process.poll() is None}

        ask_others(folder, self._attempt, running)

    def _exit_barrier(self) -> None:
        """Wait for the other nodes, unless some may be lost."""
        if not survives_losses():
            super()._exit_barrier()  # type: ignore[no-untyped-call]
            group = self._worker_group
            leave_before_node_0(self._store, group.group_rank or 0, group.group_world_size or 1)

    def _report_losses(self, worker_group: WorkerGroup) -> bool:
        """Report and stop watching ranks that failed while others continue or have completed; replace them.

        Returns True if some ranks continue on this node. Then do not call torch's check, which would end them if
        another rank has failed meanwhile.
        """
        ranks = Ranks(self)
        codes = {local: process.poll() for local, process in ranks.processes.items()}
        reports = {}
        for local, code in codes.items():
            if local not in ranks.watched or not code:
                continue
            failure = ProcessFailure(local, ranks.processes[local].pid, code, ranks.error_file(local))
            reports[local] = _describe(worker_group.workers[local].global_rank, failure)
        may_go_on = None in codes.values() or (worker_group.group_world_size or 1) > 1
        numbers = {local: self._reserve_replacement(report) if may_go_on else None for local, report in reports.items()}
        new = {local: self._start_another(ranks, worker_group, local) for local, number in numbers.items() if number}
        goes_on = None in codes.values() or any(new.values())
        if not goes_on and 0 not in codes.values():
            return False
        for local, report in reports.items():
            ranks.watched.discard(local)
            said = {"node_rank": worker_group.group_rank, "left": [], **report}  # the others may continue
            self._write("exit", self._ended_ns.get(report["pid"]), **said)
            if handler := new.get(local):
                self._replace(ranks, worker_group, local, handler, numbers[local])
        return goes_on

    def _reserve_replacement(self, report: dict[str, Any]) -> int | None:
        """Reserve the number of the next replacement, from 1; return None if the rank must not be replaced.

        That applies after a usage error, to a rank that was asked to stop, and to a rank that lost all others.
        """
        folder, code, error = launch_dir(), report["code"], report["error"] or {}
        if folder is None or code in (UsageError.exit_code, *ASKED_TO_STOP) or error.get("type") == CommError.__name__:
            return None
        for number in range(1, most_replaced() + 1):
            with contextlib.suppress(FileExistsError):  # the agents of all nodes count together
                (folder / f"replaced_{number}").touch(exist_ok=False)
                return number
        return None

    def _start_another(self, ranks: Ranks, worker_group: WorkerGroup, local: int) -> Any:
        """Start a process that joins the run in place of a lost rank. None if the process cannot be started."""
        folder = launch_dir()
        assert folder is not None
        try:
            Path(ranks.error_file(local)).unlink(missing_ok=True)
            words = ("-u", "-m", _JOIN, (folder / "run_folder").read_text())
            return ranks.start(local, words, worker_group.spec.numa_options)
        except OSError as error:
            print(f"cannot start a replacement for a lost rank: {error}", file=sys.stderr, flush=True)
            return None

    def _replace(self, ranks: Ranks, worker_group: WorkerGroup, local: int, handler: Any, number: int | None) -> None:
        """Watch the new rank in place of the lost one."""
        worker = worker_group.workers[local]
        lost = ranks.processes[local].pid
        ranks.replace(local, handler)
        worker.id = handler.proc.pid
        _ReportingAgent.pids = tuple(process.pid for process in ranks.processes.values())
        fields = {"rank": worker.global_rank, "lost": lost, "pid": worker.id, "number": number}
        self._write("replace", node_rank=worker_group.group_rank, **fields)

    def _note_ends(self, worker_group: WorkerGroup) -> None:
        """Record the ends of ranks: torchrun reports a failure only after it has ended the others."""
        ranks = {worker.id: worker.global_rank for worker in worker_group.workers}
        for process in processes_of(self):
            if process.pid not in self._ended_ns and process.poll() is not None:
                self._ended_ns[process.pid] = time.time_ns()
                self._left += [ranks[process.pid]] if process.poll() == 0 and process.pid in ranks else []

    def _write(self, event: str, unix_ns: int | None = None, **fields: Any) -> None:
        line = {"event": event, "unix_ns": unix_ns or time.time_ns(), "attempt": self._attempt, **fields}
        with open(self.reports, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def leave_before_node_0(store: Any, node: int, num_nodes: int) -> None:
    """Let node 0 wait until all others have left torch's exit barrier.

    With the static rendezvous its agent has the store, and the barrier fails on nodes that read from it when it ends.
    """
    with contextlib.suppress(DistError):  # a node was ended, or the store is gone
        if node:
            store.set(f"left_{node}", "")
        elif num_nodes > 1:
            store.wait([f"left_{other}" for other in range(1, num_nodes)], _LONGEST_TO_LEAVE)


def ask_others(folder: Path, attempt: int, running: Callable[[], set[int]]) -> None:
    """Ask the observed ranks, and wait until each running one has answered or ended.

    running: returns the ranks of this node that are still running.
    """
    if not running() & read_statuses(folder, attempt).keys():
        return
    number, until = write_request(folder, "failure"), time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        statuses = read_statuses(folder, attempt)
        if not running() & {rank for rank, status in statuses.items() if _may_write(status, number)}:
            return
        time.sleep(_POLL_S)


def _may_write(status: Status, number: int) -> bool:
    """True if a rank may still write: it has not answered, or writes what it knows because it failed too."""
    return status.state == "failed" or (status.state == "running" and status.answered != number)


def _fork_ranks(args: argparse.Namespace) -> None:
    """Set up forking of ranks if possible. Must run before this process starts a thread."""
    method = start_method()
    own = args.module and args.training_script.startswith("frog.")
    # A forked process cannot use a GPU if its parent ever initialized one.
    for_gpus = torch.version.cuda or torch.version.hip
    if method == "spawn" or args.no_python or not (method == "fork" or (own and not for_gpus)):
        return
    name = missing_to_fork()
    if name is not None:
        if method == "fork":
            raise unsupported("FROG_START=fork", name, f"a torch from {TESTED}, or FROG_START=spawn")
        return
    server = start_fork_server(args.training_script if args.module else None)
    if server is not None:
        fork_ranks_with(server.fork)


def main(arguments: list[str]) -> int:
    """Run the agent; return the exit code."""
    try:
        return _run_agent(arguments)
    except LaunchError as error:  # this version of torch lacks a name that Frog needs
        print(error, file=sys.stderr, flush=True)
        return error.exit_code


def _run_agent(arguments: list[str]) -> int:
    check_agent()
    args = parse_args(arguments[1:])  # type: ignore[no-untyped-call]
    _ReportingAgent.reports = Path(arguments[0])
    is_piped = pipe_path(_ReportingAgent.reports.parent, 0).exists()
    if not is_piped:
        _fork_ranks(args)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    leave_with_parent(last=_kill_ranks)
    _wait_for_others(_ReportingAgent.reports)
    use_agent(_ReportingAgent)
    if is_piped:
        pipe_output(_ReportingAgent.reports.parent)
    try:
        run(args)  # type: ignore[no-untyped-call]
    except ChildFailedError:
        return 1
    except (RendezvousError, DistError) as error:
        name = type(error).__name__.removesuffix("Error")
        print(f"the nodes did not connect: {name}{f': {error}' if str(error) else ''}", file=sys.stderr, flush=True)
        return NOT_MET
    except SignalException as error:
        return signal_code(int(error.sigval))
    return 0


def _wait_for_others(reports: Path) -> None:
    """Tell the launcher that this agent is up, and wait until the launcher starts the rendezvous."""
    if (folder := launch_dir()) is None:
        return
    reports.with_suffix(".up").touch()
    while not (folder / MAY_MEET).exists():
        time.sleep(0.05)


def _kill_ranks() -> None:
    for pid in _ReportingAgent.pids:
        kill_group(pid)


def _describe(rank: int, failure: ProcessFailure) -> dict[str, Any]:
    """Describe a failed rank: exit code (negative: the signal that killed it), time, and its reported error, if any."""
    error, traceback = read_error(failure.error_file, failure.timestamp)
    return {
        "rank": rank,
        "pid": failure.pid,
        "code": failure.exitcode,
        "time_s": int(failure.timestamp),
        "error": error,
        "traceback": traceback,
    }


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
