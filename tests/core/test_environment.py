"""The environment of a process: its place in the world, the variables that Frog reads, sets and passes on."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from frog.core import env
from frog.core.env import WorldEnv, world_env
from frog.core.errors import UsageError


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Replace this process's environment with an empty one."""
    empty: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", empty)
    return empty


def added(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables without pytest's own."""
    return {name: value for name, value in environ.items() if not name.startswith("PYTEST_")}


ADDRESS = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
ALONE = WorldEnv(0, 1, 0, 1, 0, 1, "127.0.0.1", None, launched=False)


@pytest.mark.parametrize(
    ("variables", "world"),
    [
        ({}, ALONE),
        ({"RANK": "", "WORLD_SIZE": "", "MASTER_PORT": ""}, ALONE),
        ({"RANK": "0", "WORLD_SIZE": "1"}, WorldEnv(0, 1, 0, 1, 0, 1, "127.0.0.1", None, launched=True)),
        ({"RANK": "3", "WORLD_SIZE": "4", **ADDRESS}, WorldEnv(3, 4, 3, 4, 0, 1, "10.0.0.1", 29500, launched=True)),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1", **ADDRESS},
            WorldEnv(3, 4, 1, 2, 1, 2, "10.0.0.1", 29500, launched=True),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0", "LOCAL_RANK": "5", **ADDRESS},
            WorldEnv(1, 2, 5, 0, 0, 2, "10.0.0.1", 29500, launched=True),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "2", "NODE_RANK": "1", **ADDRESS},
            WorldEnv(1, 2, 1, 4, 2, 1, "10.0.0.1", 29500, launched=True),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", **ADDRESS},
            WorldEnv(1, 2, 0, 1, 0, 2, "10.0.0.1", 29500, launched=True),
        ),
    ],
)
def test_world_is_what_the_launchers_variables_say(
    environ: dict[str, str], variables: dict[str, str], world: WorldEnv
) -> None:
    environ.update(variables)
    assert world_env() == world
    assert world.is_main == (world.rank == 0)


@pytest.mark.parametrize(
    ("rank", "size", "words"),
    [
        ("4", "4", "RANK=4 is outside the world of WORLD_SIZE=4"),
        ("-1", "4", "RANK=-1 is outside the world of WORLD_SIZE=4"),
        ("0", "0", "RANK=0 is outside the world of WORLD_SIZE=0"),
        ("two", "4", "environment variable RANK='two' is not a number\n  try: unset RANK, or set it"),
        ("9" * 99, "4", f"environment variable RANK='{'9' * 80}…' is not a number"),
    ],
)
def test_rank_outside_its_world_is_refused(environ: dict[str, str], rank: str, size: str, words: str) -> None:
    environ.update({"RANK": rank, "WORLD_SIZE": size, **ADDRESS})
    with pytest.raises(UsageError) as caught:
        world_env()
    assert words in str(caught.value)


def test_host_name_is_the_simulated_nodes_if_there_is_one(environ: dict[str, str]) -> None:
    assert env.host_name() == socket.gethostname()
    environ["FROG_NODE_NAME"] = "node1"
    assert env.host_name() == "node1"
    assert env.machine().startswith(f"{socket.gethostname()} ")


@pytest.mark.parametrize(
    ("function", "variables", "value"),
    [
        (env.launcher_pid, {}, None),
        (env.launcher_pid, {"FROG_LAUNCHER_PID": "0"}, None),
        (env.launcher_pid, {"FROG_LAUNCHER_PID": "17"}, 17),
        (env.launch_dir, {}, None),
        (env.launch_dir, {"FROG_LAUNCH_DIR": "/tmp/x"}, Path("/tmp/x")),
        (env.run_dir, {}, None),
        (env.run_dir, {"FROG_RUN_DIR": "runs/x"}, Path("runs/x")),
        (env.most_replaced, {}, 0),
        (env.most_replaced, {"FROG_REPLACE": "2"}, 2),
        (env.observer_name, {"FROG_OBSERVER": ""}, None),
        (env.observer_name, {"FROG_OBSERVER": "a:b"}, "a:b"),
        (env.attempt_number, {}, 0),
        (env.attempt_number, {"TORCHELASTIC_RESTART_COUNT": "3"}, 3),
        (env.attempt_number, {"TORCHELASTIC_RESTART_COUNT": "3", "FROG_ATTEMPT": "1"}, 1),
        (env.start_method, {}, None),
        (env.start_method, {"FROG_START": "fork"}, "fork"),
        (env.preferred_backend, {"FROG_BACKEND": "frog"}, "frog"),
        (env.visible_gpus, {"CUDA_VISIBLE_DEVICES": ""}, []),
        (env.visible_gpus, {"CUDA_VISIBLE_DEVICES": " 0, 2,,GPU-1 "}, ["0", "2", "GPU-1"]),
        (env.under_mpich, {"PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}, True),
        (env.under_mpich, {"PMI_SIZE": "1", "MPI_LOCALRANKID": "0"}, False),
        (env.under_mpich, {"PMI_SIZE": "2"}, False),
        (env.cache_dir, {"FROG_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}, Path("/c")),
        (env.cache_dir, {"XDG_CACHE_HOME": "/x", "HOME": "/h"}, Path("/x/frog")),
        (env.cache_dir, {"HOME": "/h"}, Path("/h/.cache/frog")),
    ],
)
def test_variable_has_its_meaning_and_its_default(
    environ: dict[str, str], function: Any, variables: dict[str, str], value: Any
) -> None:
    environ.update(variables)
    assert function() == value


@pytest.mark.parametrize(("method", "is_known"), [("", True), ("fork", True), ("spawn", True), ("forkserver", False)])
def test_unknown_start_method_is_refused(environ: dict[str, str], method: str, is_known: bool) -> None:
    environ["FROG_START"] = method
    if is_known:
        env.check_start_method()
        return
    with pytest.raises(UsageError, match="FROG_START=forkserver: expected fork or spawn"):
        env.check_start_method()


def test_run_survives_losses_if_its_launcher_marked_that(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / env.SURVIVES).touch()
    assert not env.survives_losses()
    environ["FROG_LAUNCH_DIR"] = str(tmp_path)
    assert env.survives_losses()
    (tmp_path / env.SURVIVES).unlink()
    assert not env.survives_losses()


def test_attempt_and_environment_are_set_for_later_readers(environ: dict[str, str]) -> None:
    env.set_attempt(4)
    assert env.attempt_number() == 4
    assert added(env.child_env(A="1", FROG_ATTEMPT="5")) == {"FROG_ATTEMPT": "5", "A": "1"}
    env.replace_env({"B": "2"})
    assert added(environ) == {"B": "2"}


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        *[("NCCL_DEBUG", True), ("OMP_NUM_THREADS", True), ("PYTHONPATH", True), ("RANK", True), ("FROG_START", True)],
        *[("SLURM_JOB_ID", True), ("LD_PRELOAD", True), ("CUDA_VISIBLE_DEVICES", True), ("FROG_BACKEND", True)],
        *[("HOME", False), ("EDITOR", False), ("MY_NCCL_DEBUG", False), ("RANKS", False), ("NCCL_", False)],
        *[("HF_TOKEN", False), ("SLURM_JWT_KEY", False), ("TORCH_SECRET_X", False), ("DS_PASSWORD", False)],
        *[("FROG_LAUNCHER_PID", False), ("FROG_RUN_DIR", False), ("FROG_OBSERVED_AT", False), ("FROG_HOOKS", False)],
    ],
)
def test_only_variables_of_launchers_and_libraries_without_secrets_are_recorded(name: str, is_kept: bool) -> None:
    assert env.launch_variables({name: "value"}) == ({name: "value"} if is_kept else {})


def test_recorded_variables_are_sorted() -> None:
    assert list(env.launch_variables({"RANK": "1", "MASTER_ADDR": "a", "WORLD_SIZE": "2"})) == [
        *("MASTER_ADDR", "RANK", "WORLD_SIZE")
    ]


def test_neutral_environment_has_only_what_a_program_needs(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ.update({"PATH": "/bin", "LC_ALL": "C", "TMPDIR": "/t", "OMP_NUM_THREADS": "4", "RANK": "1", "LC": "x"})
    assert env.neutral_env(A="1") == {"PATH": "/bin", "LC_ALL": "C", "TMPDIR": "/t", "A": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), "", "inner", "/lib"])
    assert env.neutral_env()["PYTHONPATH"] == os.pathsep.join([str(tmp_path / "inner"), "/lib"])
    assert env.neutral_env(PATH="/other")["PATH"] == "/other"
    environ["PYTHONPATH"] = str(tmp_path)
    assert "PYTHONPATH" not in env.neutral_env()


@pytest.mark.parametrize(
    ("address", "before", "after"),
    [
        ("127.0.0.1", None, "lo"),
        ("127.3.2.1", None, "lo"),
        ("localhost", None, "lo"),
        ("10.0.0.1", None, None),
        ("node1", None, None),
        ("127.0.0.1", "eth7", "eth7"),
    ],
)
def test_gloo_uses_the_loopback_interface_if_the_world_is_on_this_machine(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, address: str, before: str | None, after: str | None
) -> None:
    if before is not None:
        environ["GLOO_SOCKET_IFNAME"] = before
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0"), (2, "lo")])
    env.bind_loopback(address)
    assert environ.get("GLOO_SOCKET_IFNAME") == after
    environ.clear()
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0")])
    env.bind_loopback(address)
    assert added(environ) == {}


@pytest.mark.parametrize("own", [None, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"])
def test_threads_wait_passively_unless_the_user_chose_otherwise(environ: dict[str, str], own: str | None) -> None:
    before = {own: "mine"} if own else {}
    environ.update(before)
    env.wait_passively()
    assert added(environ) == (before or {"OMP_WAIT_POLICY": "passive"})


def test_variables_of_other_libraries_are_set_unless_they_are(environ: dict[str, str]) -> None:
    env.prepare_deepspeed(2, on_cpu=False)
    env.quiet_profiler()
    assert added(environ) == {"LOCAL_RANK": "2", "KINETO_LOG_LEVEL": "6"}
    environ["KINETO_LOG_LEVEL"] = "0"
    env.prepare_deepspeed(3, on_cpu=True)
    env.quiet_profiler()
    assert added(environ) == {"LOCAL_RANK": "2", "DS_ACCELERATOR": "cpu", "KINETO_LOG_LEVEL": "0"}
