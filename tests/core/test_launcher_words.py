"""Variables of other launchers, converted to torchrun's; worlds of one; incomplete variables."""

from __future__ import annotations

import os

import pytest

from frog.core.env import world_env
from frog.core.errors import UsageError
from frog.core.launchers import first_host, in_torchrun_words

PID = 4711
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "245825537",
    "PMIX_RANK": "3",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[08-09,11]",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_TASK_PID": str(PID),
}
"""Variables of rank 4 of `srun -N3 -n5`, recorded from Slurm 22.05, Open MPI 4.1 and MPICH 5.0."""


def test_open_mpi_rank_on_one_node_is_translated() -> None:
    told = in_torchrun_words(OPEN_MPI, PID)
    port = int(told.pop("MASTER_PORT"))
    assert 20_000 <= port < 30_000
    assert told == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "4",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
    }
    other_rank = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_RANK": "0"}
    assert in_torchrun_words(other_rank, 1)["MASTER_PORT"] == str(port), "every rank computes the same port"
    other_job = in_torchrun_words({**OPEN_MPI, "PMIX_NAMESPACE": "245825538"}, PID)
    assert other_job["MASTER_PORT"] != str(port), "another job computes another port"


def test_open_mpi_over_several_nodes_needs_an_address() -> None:
    several = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(UsageError, match="MASTER_ADDR and MASTER_PORT not set") as caught:
        in_torchrun_words(several, PID)
    assert caught.value.hint == "mpirun -x MASTER_ADDR=HOST_OF_RANK_0 -x MASTER_PORT=29500 ..."
    told = in_torchrun_words({**several, "MASTER_ADDR": "gpu08", "MASTER_PORT": "29511"}, PID)
    assert told == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_mpich_without_a_port_is_rejected() -> None:
    with pytest.raises(UsageError, match="MASTER_PORT not set") as caught:
        in_torchrun_words(MPICH, PID)
    assert caught.value.hint == "mpiexec -genv MASTER_PORT 29500 ..."
    told = in_torchrun_words({**MPICH, "MASTER_PORT": "29511"}, PID)
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"], told["MASTER_ADDR"]) == ("1", "2", "1", "127.0.0.1")


def test_srun_task_is_a_rank() -> None:
    told = in_torchrun_words(SRUN, PID)
    port = told.pop("MASTER_PORT")
    assert told == {
        "RANK": "4",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "2",
        "MASTER_ADDR": "gpu08",
    }
    assert in_torchrun_words({**SRUN, "SLURM_PROCID": "0"}, PID)["MASTER_PORT"] == port
    assert in_torchrun_words({**SRUN, "SLURM_STEP_ID": "3"}, PID)["MASTER_PORT"] != port, (
        "two steps of a job have different ports"
    )
    assert in_torchrun_words({**SRUN, "MASTER_ADDR": "10.0.0.1"}, PID).get("MASTER_ADDR") is None, (
        "a given address is kept"
    )
    assert in_torchrun_words({**SRUN, "SLURM_NODEID": "1"}, PID)["LOCAL_WORLD_SIZE"] == "2"
    on_one_node = {**SRUN, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0"}
    assert in_torchrun_words(on_one_node, PID)["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": None, "SLURM_STEP_NUM_TASKS": None, "SLURM_PROCID": "0"},  # a batch script
        {"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"},  # a batch script, of newer versions
        {"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"},  # the shell of salloc
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # srun with one task, in a job of five
        {"SLURM_PTY_PORT": "41001", "SLURM_TASK_PID": "12"},  # a command in the shell of srun --ntasks=5 --pty bash
        {"SLURM_PROCID": None},
    ],
)
def test_plain_python_in_a_slurm_job_is_a_world_of_one(changes: dict[str, str | None]) -> None:
    environ = {name: value for name, value in {**SRUN, **changes}.items() if value is not None}
    assert in_torchrun_words(environ, PID) == {}


def test_srun_task_with_a_terminal_is_a_rank() -> None:
    assert in_torchrun_words({**SRUN, "SLURM_PTY_PORT": "41001"}, PID)["RANK"] == "4"


@pytest.mark.parametrize("outer", [OPEN_MPI, MPICH, SRUN])
def test_torchrun_inside_another_launcher_takes_precedence(outer: dict[str, str]) -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert in_torchrun_words({**outer, **torchrun}, PID) == {}


def test_mpirun_inside_a_slurm_job_takes_precedence_over_its_daemon_step() -> None:
    assert in_torchrun_words({**SRUN, **OPEN_MPI}, PID)["WORLD_SIZE"] == "4"
    assert in_torchrun_words({**SRUN, "PMI_RANK": "4", "PMI_SIZE": "5"}, PID)["NODE_RANK"] == "2", "srun --mpi=pmi2"


@pytest.mark.parametrize("alone", [{"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, {"PMI_SIZE": "1"}, {}])
def test_launcher_with_one_process_is_ignored(alone: dict[str, str]) -> None:
    assert in_torchrun_words(alone, PID) == {}


def test_deepspeed_node_variable_is_recognized() -> None:
    told = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "1", "CROSS_SIZE": "2"}
    assert in_torchrun_words(told, PID) == {"LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}


def test_accelerate_with_one_process_of_several_is_rejected() -> None:
    told = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with pytest.raises(UsageError, match="started one process") as caught:
        in_torchrun_words(told, PID)
    assert "MULTI_GPU" in str(caught.value)
    assert in_torchrun_words({"ACCELERATE_MIXED_PRECISION": "no"}, PID) == {}
    assert in_torchrun_words({**told, **OPEN_MPI}, PID)["RANK"] == "3", "its mpirun starts ranks"


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("node7", "node7"), ("a,b", "a"), ("n[003-005,9],x", "n003"), ("r[1-2]n[5,7]-ib,z", "r1n5-ib"), ("", "")],
)
def test_first_host_is_extracted_from_a_slurm_node_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Replace this process's environment with an empty one."""
    empty: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", empty)
    return empty


def test_rank_variables_are_written_to_torchs_environment(environ: dict[str, str]) -> None:
    environ.update(OPEN_MPI)
    world = world_env()
    assert (world.rank, world.world_size, world.local_rank, world.num_nodes, world.launched) == (3, 4, 3, 1, True)
    assert environ["RANK"] == "3"
    assert environ["MASTER_PORT"] == str(world.master_port)
    assert world_env() == world, "a second call gives the same result"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"RANK": "1"}, ["RANK=1 set, but not WORLD_SIZE", "unset RANK WORLD_SIZE"]),
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE=2 set, but not RANK"]),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ["RANK=1 WORLD_SIZE=2 set, but not MASTER_ADDR and MASTER_PORT"]),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, ["MASTER_ADDR=a set, but not MASTER_PORT"]),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}, ["MASTER_PORT=29500 set, but not MASTER_ADDR"]),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, ["RANK=2 is outside"]),
        ({**OPEN_MPI, "RANK": "1"}, ["RANK=1 set, but not WORLD_SIZE"]),
    ],
)
def test_incomplete_world_variables_are_rejected(
    environ: dict[str, str], told: dict[str, str], words: list[str]
) -> None:
    environ.update(told)
    with pytest.raises(UsageError) as caught:
        world_env()
    assert all(word in str(caught.value) for word in words), caught.value


def test_missing_local_variables_are_not_an_error(environ: dict[str, str]) -> None:
    environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "LOCAL_RANK": "0"})
    assert not world_env().launched
    environ.update({"RANK": "0", "WORLD_SIZE": "1"})
    assert world_env().launched
