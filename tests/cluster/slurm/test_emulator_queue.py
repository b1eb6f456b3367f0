"""The emulator's choice of the next job and the placement of tasks. No processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from frog.cluster.emulator import SlurmRefusal
from frog.cluster.emulator.controller import SlurmController, end_state
from frog.cluster.emulator.daemon import _nodes_asked, snapshot
from frog.cluster.emulator.emulated_job import (
    CANCELLED,
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    EmulatedJob,
    JobRequest,
    Node,
    StepRequest,
)
from frog.cluster.emulator.job_processes import enter, submitted_environment
from frog.cluster.emulator.queue_control import SHORT_STATES, _states, scancel, scontrol, squeue
from frog.cluster.emulator.sbatch import make_request, sbatch
from frog.cluster.emulator.scheduling import (
    check_fits,
    dependency_text,
    find_jobs,
    free_resources,
    next_to_start,
    place_job,
    place_step,
)
from frog.cluster.emulator.wire import Client

NODES = [Node("node1", 8, 4), Node("node2", 8, 4)]


def request(**fields: Any) -> JobRequest:
    plain = {"submit_dir": "/", "work_dir": "/", "submit_host": "here", "umask": 0o022, "command": "x"}
    return JobRequest(**{"name": "job", "user": "me", "environment": {}, **plain, **fields})


def job(number: int, state: str = PENDING, **fields: Any) -> EmulatedJob:
    found = EmulatedJob(request(**fields), 0.0, number, state=state)
    if state == RUNNING:
        place(found)
    return found


def place(found: EmulatedJob, *others: EmulatedJob) -> None:
    allocations = place_job(found.request, free_resources(NODES, others))
    assert allocations is not None
    found.allocations, found.state = allocations, RUNNING


def started(jobs: list[EmulatedJob]) -> int | None:
    found = next_to_start(jobs, NODES)
    return None if found is None else found[0].job_id


def test_jobs_start_in_order_of_submission() -> None:
    running, large, small = job(1, RUNNING, nodes=1, gpus_per_node=1), job(2, nodes=2, gpus_per_node=4), job(3)
    jobs = [running, large, small]
    assert started(jobs) is None
    assert (large.reason, small.reason) == ("Resources", "Priority")
    running.state = COMPLETED
    assert started(jobs) == 2


def test_jobs_get_disjoint_gpus() -> None:
    first, second = job(1, RUNNING, gpus_per_node=3), job(2, gpus_per_node=1)
    place(second, first)
    assert [allocation.gpus for allocation in first.allocations + second.allocations] == [[0, 1, 2], [3]]
    third = place_job(request(gpus_per_node=1), free_resources(NODES, [first, second]))
    assert third is not None
    assert (third[0].node, third[0].gpus) == ("node2", [0])


@pytest.mark.parametrize(
    ("fields", "tasks"),
    [
        ({"nodes": 2, "ntasks": 5}, [4, 1]),
        ({"ntasks": 10}, [8, 2]),
        ({"ntasks": 3, "cpus_per_task": 3}, [2, 1]),
        ({"nodes": 2, "ntasks_per_node": 3}, [3, 3]),
        ({"ntasks": 4, "ntasks_per_node": 2}, [2, 2]),
        ({"exclusive": True}, [8]),
    ],
)
def test_tasks_are_placed_on_nodes(fields: dict[str, Any], tasks: list[int]) -> None:
    allocations = place_job(request(**fields), free_resources(NODES, []))
    assert allocations is not None
    assert [allocation.tasks for allocation in allocations] == tasks


def test_job_too_large_for_the_cluster_is_detected() -> None:
    assert check_fits(request(nodes=3), NODES) == "PartitionNodeLimit"
    assert check_fits(request(ntasks=17), NODES) == "PartitionConfig"
    for fields in ({"gpus_per_node": 5}, {"cpus_per_task": 9}, {"node_names": ["node9"]}, {"mem_mb": 10**9}):
        with pytest.raises(SlurmRefusal):
            check_fits(request(**fields), NODES)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"mem_mb": 512_000}, True),
        ({"mem_mb": 512_001}, False),
        ({"mem_per_cpu_mb": 64_000, "cpus_per_task": 4, "ntasks_per_node": 2}, True),
        ({"mem_per_cpu_mb": 64_001, "cpus_per_task": 4, "ntasks_per_node": 2}, False),
        ({"mem_per_cpu_mb": 512_000}, True),
        ({"mem_per_cpu_mb": 256_001, "ntasks_per_node": 2}, False),
        ({"cpus_per_task": 4, "ntasks_per_node": 2}, True),
        ({"cpus_per_task": 3, "ntasks_per_node": 3}, False),
        ({"cpus_per_task": 8}, True),
        ({"gpus_per_node": 4}, True),
        ({"nodes": 2, "ntasks": 17}, False),
        ({"gpus_per_task": 2, "ntasks": 4}, True),
        ({"gpus_per_task": 2, "ntasks": 5}, False),
    ],
)
def test_job_that_fits_exactly_is_accepted_and_one_that_is_larger_refused(fields: dict[str, Any], fits: bool) -> None:
    if fits:
        assert check_fits(request(**fields), NODES) is None
        return
    with pytest.raises(SlurmRefusal):
        check_fits(request(**fields), NODES)


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({}, 1),
        ({"nodes": 3}, 3),
        ({"ntasks": 7}, 1),
        ({"ntasks": 7, "ntasks_per_node": 3}, 3),
        ({"ntasks": 6, "ntasks_per_node": 3}, 2),
        ({"ntasks_per_node": 3}, 1),
    ],
)
def test_waiting_job_asks_for_as_many_nodes_as_its_tasks_need(fields: dict[str, Any], nodes: int) -> None:
    assert _nodes_asked(job(1, **fields)) == nodes


def test_states_of_a_queue_are_named_long_or_short() -> None:
    assert _states("pd,R,COMPLETED") == {"PENDING", "RUNNING", "COMPLETED"}
    assert _states("running,all") == set(SHORT_STATES)
    for text in ("PENDING,NONE", "", "RUNNIN"):
        with pytest.raises(SlurmRefusal, match="Invalid job state specified"):
            _states(text)


@pytest.mark.parametrize(
    ("kind", "state", "reason"),
    [
        ("afterok", COMPLETED, "None"),
        ("afterok", FAILED, "DependencyNeverSatisfied"),
        ("afterok", RUNNING, "Dependency"),
        ("afternotok", CANCELLED, "None"),
        ("afternotok", COMPLETED, "DependencyNeverSatisfied"),
        ("afterany", FAILED, "None"),
        ("afterany", PENDING, "Dependency"),
        ("after", RUNNING, "None"),
        ("after", PENDING, "Dependency"),
    ],
)
def test_dependency_controls_start_and_reason(kind: str, state: str, reason: str) -> None:
    other, waiting = job(1, state), job(2, dependency=[(kind, ["1"])])
    other.held = state == PENDING
    jobs = [other, waiting]
    assert (started(jobs) == 2) is (reason == "None")
    assert waiting.reason == reason
    assert dependency_text(waiting, jobs) != "(null)" or reason == "None"


def test_unknown_dependency_counts_as_fulfilled() -> None:
    assert started([job(2, dependency=[("afterok", ["99"])])]) == 2


def test_singleton_waits_for_earlier_jobs_with_its_name() -> None:
    jobs = [job(1, RUNNING), job(2, name="other"), job(3, dependency=[("singleton", [])])]
    jobs[1].state = COMPLETED
    assert started(jobs) is None
    jobs[0].state = FAILED
    assert started(jobs) == 3


def test_array_limits_simultaneous_tasks() -> None:
    spec = ([0, 1, 2], 1, 1)
    tasks = [EmulatedJob(request(array=spec), 0.0, None, 5, number) for number in spec[0]]
    found = next_to_start(tasks, NODES)
    assert found is not None
    assert found[0].array_task == 0
    place(tasks[0])
    assert next_to_start(tasks, NODES) is None
    assert tasks[1].reason == "JobArrayTaskLimit"
    assert find_jobs(tasks, "5") == tasks
    assert find_jobs(tasks, "5_2") == [tasks[2]]


def test_requested_end_applies_even_if_script_ends_first(tmp_path: Path) -> None:
    controller = SlurmController(tmp_path, "frogtest", NODES, 1, 1.0)
    again, away, both, plain = (job(number, RUNNING, script="") for number in (1, 2, 3, 4))
    controller.request_end(again, PENDING)
    controller.request_end(away, CANCELLED)
    for state in (CANCELLED, PENDING):
        controller.request_end(both, state)
    for one in (again, away, both, plain):
        controller.close(one, 3)
    assert [(one.state, one.restarts) for one in (again, away, both, plain)] == [
        (PENDING, 1), (CANCELLED, 0), (CANCELLED, 0), (FAILED, 0),
    ]  # fmt: skip
    assert again.requested_end is None


def test_job_receives_sigterm_twice_at_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller, found, sent = SlurmController(tmp_path, "frogtest", NODES, 1, 1.0), job(1, RUNNING), []
    controller.jobs, found.limit_s = [found], 100.0

    class Timer:
        def __init__(self, after_s: float, act: Callable[[EmulatedJob], None], words: tuple[EmulatedJob]) -> None:
            self.start = lambda: sent.append(after_s) or act(*words)

    monkeypatch.setattr("frog.cluster.emulator.controller.threading.Timer", Timer)
    monkeypatch.setattr(controller, "_signal", lambda job, numbers, **_: sent.append(list(numbers)))
    with controller.changed:
        controller._watch_the_clock(99.9)
        assert sent == []
        controller._watch_the_clock(100.0)
    assert sent == [[signal.SIGCONT, signal.SIGTERM], 0.5, [signal.SIGTERM]]


@pytest.mark.parametrize(("look_s", "first_s"), [(30.0, 15.0), (0.2, 0.1)])
def test_earliest_warning_comes_with_the_first_check(look_s: float, first_s: float, tmp_path: Path) -> None:
    controller = SlurmController(tmp_path, "frogtest", NODES, 1, 1.0)
    controller.look_s = look_s
    found = job(1, RUNNING, signal=(10, 60, True))
    found.started_s, found.limit_s = 1000.0, 1008.0
    assert controller._warning_s(found) == 1000.0 + first_s


@pytest.mark.parametrize(("limit_min", "left_s", "shown_min"), [(1440, 1, 1), (3, 38, 2), (None, 72038, 1202)])
def test_changed_end_time_updates_the_limit(limit_min: int | None, left_s: int, shown_min: int, tmp_path: Path) -> None:
    """Expected limits of jobs that had one come from a real Slurm, after a few seconds; without one, from the end."""
    controller, found = SlurmController(tmp_path, "frogtest", NODES, 1, 1.0), job(1, RUNNING)
    found.started_s, found.limit_min = 1000.0, limit_min
    found.limit_s = None if limit_min is None else 1000.0 + 60 * limit_min
    with controller.changed:
        controller.move_end(found, 1005.0 + left_s)
    assert (found.limit_min, found.limit_s) == (shown_min, 1005.0 + left_s)


def test_none_is_not_a_job_name() -> None:
    plain, (first, second) = (
        job(1),
        [EmulatedJob(request(array=([0, 1], 1, None)), 0.0, None, 5, task) for task in (0, 1)],
    )
    second.job_id = 6
    jobs = [plain, first, second]
    assert [find_jobs(jobs, text) for text in ("None", "1", "5", "5_1", "6")] == [
        [], [plain], [first, second], [second], [second],
    ]  # fmt: skip


class RecordingClient(Client):
    """A client whose daemon has these jobs and nodes, and records its requests."""

    asked: ClassVar[list[str]] = []

    def ask(self, act: str, **fields: Any) -> dict[str, Any]:
        self.asked.append(f"{act} {fields.get('job', fields.get('request', {}).get('name', ''))}")
        if act == "submit":
            return {"job": 13}
        controller = SlurmController(self.folder, "frogtest", NODES, 1, 1.0)
        controller.jobs = [job(11), job(12)]
        return snapshot(controller)


@pytest.fixture
def client(tmp_path: Path) -> RecordingClient:
    RecordingClient.asked.clear()
    return RecordingClient(0, "", tmp_path)


def test_unknown_job_among_several_is_ignored(client: RecordingClient, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("11,99", "99,11"):
        assert squeue(client, ["--noheader", "--format=%i", "--jobs", words]) == 0
        assert capsys.readouterr().out == "11\n"
        assert scancel(client, [words]) == 0
    assert client.asked.count("cancel 11") == 2
    assert "cancel 12" not in client.asked
    with pytest.raises(SlurmRefusal, match="Invalid job id specified"):
        squeue(client, ["--jobs=99"])


@pytest.mark.parametrize("text", ["None", "11,None", "11,"])
def test_invalid_job_number_is_refused(text: str, client: RecordingClient) -> None:
    for command, word in ((squeue, f"--jobs={text}"), (scancel, text)):
        with pytest.raises(SlurmRefusal, match="Invalid job id"):
            command(client, [word])
    assert not any(asked.startswith("cancel") for asked in client.asked)
    with pytest.raises(SlurmRefusal, match="Invalid job id specified"):
        scontrol(client, ["show", "job", text])


def test_invalid_node_list_is_not_found(client: RecordingClient, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SlurmRefusal):
        scontrol(client, ["show", "node", "node[1"])
    assert capsys.readouterr().out == "Node node[1 not found\n"


def test_node_list_longer_than_node_count_is_shortened_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SlurmRefusal, match=r"invalid number of nodes \(-N 2-1\)"):
        make_request({"nodes": "1", "nodelist": "node[1-2]"}, default_name="x")
    asked = make_request({"nodes": "1", "nodelist": "node[1-2]"}, default_name="x", program="srun")
    assert (asked.nodes, asked.node_names) == (1, ["node1"])
    assert "Eliminating nodes from the nodelist" in capsys.readouterr().err
    asked = make_request({"ntasks": "1", "nodelist": "node[1-2]"}, default_name="x")
    assert (asked.nodes, asked.node_names) == (1, ["node1"])
    assert "can't run 1 processes on 2 nodes" in capsys.readouterr().err


def test_job_without_gpus_does_not_inherit_gpu_variables() -> None:
    outer = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "0,1", "SLURM_GPUS_ON_NODE": "2", "HOME": "/"}
    found = submitted_environment(request(environment={**outer, "SLURM_CPUS_PER_TASK": "3", "SLURM_NTASKS": "2"}))
    assert found == {"HOME": "/", "SLURM_CPUS_PER_TASK": "1", "SLURM_NTASKS": "2"}
    assert "SLURM_CPUS_PER_TASK" not in submitted_environment(request(environment=outer))


def test_missing_working_folder_falls_back_to_tmp(tmp_path: Path) -> None:
    assert enter(tmp_path) == (tmp_path, "")
    place, said = enter(tmp_path / "none")
    assert place == Path("/tmp")
    assert said.endswith("No such file or directory: going to /tmp instead\n")


def step(**fields: Any) -> StepRequest:
    plain = {"num_nodes": 2, "node_names": (), "cpus_per_task": 1, "overlap": False, "exact": False}
    return StepRequest(**{"ntasks": 2, **plain, **fields})


def test_steps_are_placed_on_the_job() -> None:
    allocations = job(1, RUNNING, nodes=2, ntasks=10).allocations
    parts = place_step(step(ntasks=5), allocations, {})
    assert parts is not None
    assert [part.tasks for part in parts] == [3, 2]
    assert place_step(step(), allocations, {"node1": 1}) is None, "another step uses the node"
    assert place_step(step(exact=True), allocations, {"node1": 1}) is not None
    assert place_step(step(overlap=True), allocations, {"node1": 8}) is not None
    alone = place_step(step(ntasks=1, num_nodes=1), allocations, {"node1": 8})
    assert alone is not None
    assert alone[0].node == "node2"
    for wrong in (step(num_nodes=3), step(ntasks=11), step(node_names=("node9",))):
        with pytest.raises(SlurmRefusal):
            place_step(wrong, allocations, {})
    with pytest.raises(SlurmRefusal, match="does not support --ntasks-per-node=5"):
        place_step(step(ntasks=10, per_node=5), allocations, {})


def test_job_has_its_scripts_name_whatever_its_options(
    client: RecordingClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.sbatch").write_text("#!/bin/sh\n")
    assert sbatch(client, ["--parsable", "--requeue", str(tmp_path / "train.sbatch")]) == 0
    assert (client.asked, capsys.readouterr().out) == (["submit train.sbatch"], "13\n")


@pytest.mark.parametrize(
    ("code", "end", "expected"),
    [
        (0, None, ("COMPLETED", "None")),
        (1, None, ("FAILED", "NonZeroExitCode")),
        (-9, None, ("FAILED", "JobLaunchFailure")),
        (0, "CANCELLED", ("CANCELLED", "None")),
        (-15, "TIMEOUT", ("TIMEOUT", "TimeLimit")),
    ],
)
def test_end_of_a_job_has_a_state_and_a_reason(code: int, end: str | None, expected: tuple[str, str]) -> None:
    assert end_state(code, end) == expected
