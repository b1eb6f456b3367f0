"""Which Python processes are observed, as which rank: from their environment and command alone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from frog.core.files import write_json
from frog.observe.hook.frog_observer.place import Owner, Place, after_earlier_starts, find_place

RANK = {"FROG_RUN_DIR": "/runs/x", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "GROUP_RANK": "1"}
SCRIPT = ["python", "-u", "train.py"]


def test_rank_of_torchrun_has_a_folder_per_attempt() -> None:
    place = find_place({**RANK, "TORCHELASTIC_RESTART_COUNT": "2"}, 10, SCRIPT)
    assert place is not None
    assert (place.rank, place.local_rank, place.node_rank, place.world_size, place.attempt) == (3, 1, 1, 4, 2)
    assert place.folder == "/runs/x/observed/attempt_2/rank_3"
    assert place.requests == "/runs/x/observed/request.json"


def test_attempt_of_frog_counts_before_that_of_torchrun() -> None:
    place = find_place({**RANK, "FROG_ATTEMPT": "5", "TORCHELASTIC_RESTART_COUNT": "2"}, 10, SCRIPT)
    assert place is not None
    assert place.attempt == 5


def test_restarted_container_or_job_has_an_attempt_of_its_own(tmp_path: Path) -> None:
    """A program that follows in the same container, and a restart by torchrun, keep their number."""
    environ = {**RANK, "FROG_RUN_DIR": str(tmp_path)}

    def attempt(start: str = "", **changes: str) -> int:
        place = find_place({**environ, **changes}, 10, SCRIPT)
        assert place is not None
        place = after_earlier_starts(place._replace(start=f"{start}{place.start}"))
        write_json(Path(place.folder) / "status.json", {"start": place.start})
        return place.attempt

    assert [attempt(), attempt(), attempt(TORCHELASTIC_RESTART_COUNT="1")] == [0, 0, 1]
    assert [attempt("second pod "), attempt("second pod "), attempt("third pod ")] == [2, 2, 3]
    assert [attempt(SLURM_RESTART_COUNT="1"), attempt(SLURM_RESTART_COUNT="1")] == [4, 4]


@pytest.mark.parametrize("without", ["FROG_RUN_DIR", "RANK"])
def test_process_without_rank_or_folder_is_not_observed(without: str) -> None:
    assert find_place({name: value for name, value in RANK.items() if name != without}, 10, SCRIPT) is None


def test_child_of_a_rank_is_not_observed_but_its_own_successor_is() -> None:
    place = find_place(RANK, 10, SCRIPT)
    assert place is not None
    inherited = {**RANK, "FROG_OBSERVED_PID": place.mark}
    assert find_place(inherited, 11, SCRIPT) is None
    assert find_place(inherited, 10, SCRIPT) is not None, "the same process after exec"


def test_rank_below_another_rank_is_observed() -> None:
    """A Kubernetes operator sets RANK for a pod, in which torchrun starts ranks."""
    pod = {"FROG_RUN_DIR": "/runs/x", "RANK": "1", "WORLD_SIZE": "2"}
    place = find_place(pod, 10, ["python", "wrapper.py"])
    assert place is not None
    assert find_place({**RANK, "FROG_OBSERVED_PID": place.mark}, 11, SCRIPT) is not None


@pytest.mark.parametrize(
    "words",
    [
        ["python", "/opt/bin/torchrun", "--nproc-per-node=2", "train.py"],
        ["python", "-u", "-m", "torch.distributed.run", "train.py"],
        ["python3.11", "-mtorch.distributed.launch", "train.py"],
        ["python", "-X", "faulthandler", "-W", "error", "-m", "accelerate.commands.launch", "train.py"],
        ["python", "-m", "frog.launch.torchrun.agent", "reports.jsonl"],
    ],
    ids=" ".join,
)
def test_launcher_in_a_pod_with_rank_is_not_observed(words: list[str]) -> None:
    assert find_place(RANK, 10, words) is None


@pytest.mark.parametrize(
    "words", [["python", "-c", "torchrun"], ["python", "train.py", "-m", "torchrun"], ["python"], []], ids=" ".join
)
def test_program_is_not_mistaken_for_a_launcher(words: list[str]) -> None:
    assert find_place(RANK, 10, words) is not None


TASK = {
    "FROG_RUN_DIR": "/runs/x",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "6",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "5"}, (5, 5, 0, 6)),
        ({"RANK": "5", "NODE_RANK": "2"}, (5, 5, 2, 6)),
        ({"RANK": "5", "NODE_RANK": "2", "GROUP_RANK": "1", "LOCAL_RANK": "3", "WORLD_SIZE": "8"}, (5, 3, 1, 8)),
        ({"RANK": "5", "LOCAL_RANK": "x", "WORLD_SIZE": "-8"}, (5, 5, 0, 6)),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, (3, 0, 0, 4)),
        ({"PMI_RANK": "3", "MPI_LOCALRANKID": "1", "PMI_SIZE": "4"}, (3, 1, 0, 4)),
    ],
)
def test_missing_variables_have_the_values_of_one_node(environ: dict[str, str], expected: tuple[int, ...]) -> None:
    place = find_place({"FROG_RUN_DIR": "/runs/x", **environ}, 10, SCRIPT)
    assert place is not None
    assert (place.rank, place.local_rank, place.node_rank, place.world_size) == expected
    assert place.attempt == 0


def test_task_of_srun_is_a_rank() -> None:
    place = find_place(TASK, 10, SCRIPT)
    assert place is not None
    assert (place.rank, place.local_rank, place.node_rank, place.world_size) == (5, 1, 2, 6)


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": str(0xFFFF_FFFB)},  # a batch script
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_PTY_PORT": "1", "SLURM_TASK_PID": "9"},
    ],
    ids=str,
)
def test_batch_script_and_shell_of_slurm_are_not_ranks(changes: dict[str, str]) -> None:
    assert find_place({**TASK, **changes}, 10, SCRIPT) is None


def test_rank_of_open_mpi_is_observed() -> None:
    variables = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
    place = find_place({"FROG_RUN_DIR": "/runs/x", **variables}, 10, SCRIPT)
    assert place is not None
    assert (place.rank, place.world_size) == (2, 4)


@pytest.mark.parametrize("rank", ["", "-1", "x", "²", "1.5"])
def test_invalid_rank_is_not_observed(rank: str) -> None:
    assert find_place({**RANK, "RANK": rank}, 10, SCRIPT) is None


# ---- which process of a rank writes to its folder --------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = find_place({**RANK, "FROG_RUN_DIR": str(tmp_path), "FROG_NODE_NAME": "here"}, 10, SCRIPT)
    assert found is not None
    return found


def left_by(place: Place, **status: Any) -> None:
    """Leave the status of another process, which has imported torch and runs, except for the fields in `status`."""
    running = {"pid": os.getpid(), "host": "here", "state": "running", "torch": "2", "unix_ns": time.time_ns()}
    write_json(Path(place.folder) / "status.json", {**running, **status})


GONE = 1 << 30  # above the largest number of a process


@pytest.mark.parametrize(
    ("status", "with_torch", "without"),
    [
        ({"pid": 10}, True, True),  # its own
        ({}, False, False),
        ({"torch": ""}, True, False),  # a program with torch comes before one without
        ({"pid": GONE}, True, False),
        ({"pid": GONE, "torch": ""}, True, True),
        ({"pid": 0}, True, False),
        ({"pid": -1}, True, False),
        ({"state": "ended"}, True, False),
        ({"state": "ended", "torch": ""}, True, True),
        ({"host": "there", "pid": GONE}, False, False),  # only the time is known of a process of another node
        ({"host": "there", "unix_ns": 0}, True, False),
        ({"unix_ns": None}, True, False),
        ({"pid": None}, True, False),
    ],
)
def test_running_process_keeps_the_folder_and_torch_comes_first(
    status: dict[str, Any], with_torch: bool, without: bool, place: Place
) -> None:
    for has_torch, may_write in ((True, with_torch), (False, without)):
        left_by(place, **status)
        assert Owner(place, 10).may_write(has_torch) == may_write, has_torch


@pytest.mark.parametrize(("seconds", "may_write"), [(4, False), (6, True)])
def test_silent_process_of_another_node_loses_the_folder_after_five_seconds(
    seconds: int, may_write: bool, place: Place
) -> None:
    left_by(place, host="there", unix_ns=time.time_ns() - seconds * 10**9)
    assert Owner(place, 10).may_write(True) == may_write


def test_files_of_an_ended_process_move_aside(place: Place) -> None:
    assert Owner(place, 10).may_write(False)  # there is no folder yet
    left_by(place, pid=GONE)
    names = {"collectives.json", "stacks.json", "error.json", "crash.txt", "status.json"}
    for name in (*names, "other.txt"):
        (Path(place.folder) / name).touch()
    left_by(place, pid=GONE)
    assert Owner(place, 10).may_write(True)
    assert {path.name for path in Path(place.folder).iterdir()} == {"earlier", "other.txt"}
    assert {path.name for path in (Path(place.folder) / "earlier").iterdir()} == names
