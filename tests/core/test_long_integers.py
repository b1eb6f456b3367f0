"""Integers of thousands of digits, which Python's `int` refuses to read and `str` to show, are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_argument_types import refusal

from frog.cluster.kubernetes.manifest_text import load_documents
from frog.core.config.load import load_run_config
from frog.core.env import world_env
from frog.core.errors import ConfigError, UsageError
from frog.core.launchers import in_torchrun_words
from frog.launch.program import parse_torchrun
from frog.observe.hook.frog_observer.place import _rank_variables

LONG = "9" * 6000
HEX = "0x" + "f" * 6000
WIDEST = 9223372036854775807


@pytest.mark.parametrize("number", [LONG, f"-{LONG}", HEX, str(WIDEST * 4), f"[{HEX}]", f"{{ a = {HEX} }}"])
def test_a_long_number_in_an_override_is_a_mistake_of_its_field(tmp_path: Path, number: str) -> None:
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(ConfigError) as refused:
        load_run_config(tmp_path / "run.toml", [f"train.steps={number}"])
    assert "train.steps=" in refused.value.what
    assert len(refused.value.what) < 1000
    if number in (LONG, f"-{LONG}", HEX):
        assert "a number of more than 64 bits" in refused.value.what


@pytest.mark.parametrize("number", [LONG, HEX])
def test_a_long_number_in_a_run_file_is_not_valid(tmp_path: Path, number: str) -> None:
    (tmp_path / "run.toml").write_text(f"[train]\nsteps = {number}\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_run_config(tmp_path / "run.toml")


@pytest.mark.parametrize("number", [LONG, HEX, f"0b{'1' * 20_000}"])
def test_a_long_number_in_a_manifest_is_not_valid(number: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        load_documents(f"kind: Job\nreplicas: {number}\n")


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_PORT"])
def test_a_long_variable_of_a_launcher_is_a_mistake(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for known, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(known, value)
    monkeypatch.setenv(name, LONG)
    with pytest.raises(UsageError, match=f"{name}='9+…' is not a number"):
        world_env()


@pytest.mark.parametrize(
    "names",
    [
        ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"],
        ["PMI_SIZE", "MPI_LOCALRANKID"],
        ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_PROCID"],
    ],
)
def test_long_variables_of_other_launchers_are_no_world(names: list[str]) -> None:
    environ = dict.fromkeys(names, LONG)
    assert in_torchrun_words(environ, 1) == {}
    assert _rank_variables(environ, 1) is None


def test_a_long_number_of_nodes_with_as_many_tasks_is_read() -> None:
    environ = {
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "3",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": f"2(x{LONG}),3",
    }
    assert in_torchrun_words(environ, 1)["LOCAL_WORLD_SIZE"] == "2"


def test_torchrun_with_a_long_number_of_nodes_is_refused() -> None:
    for words in (["--nnodes", LONG], ["--nproc-per-node", LONG], ["--max-restarts", LONG]):
        with pytest.raises(UsageError):
            parse_torchrun(["torchrun", *words, "-m", "x"])


@pytest.mark.parametrize(
    "command", ["sample x --tokens", "sample x --seed", "run --nproc", "quiz --seed", "eval x --tokens"]
)
def test_a_long_number_of_an_option_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    line = refusal(capsys, f"{command} {LONG}")
    assert "999" in line
    assert len(line) < 300
