"""DeepSpeed's JSON and accelerate's YAML: contradictions in a file, and with the job that uses it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from frog.cli import main
from frog.cluster.jobfile.explain import explain
from frog.cluster.jobfile.launcher_files import JobOfFile, file_findings, read_launcher_file

ROOT = Path(__file__).parents[3]
BATCH = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
FAILS, WASTES = "will fail", "may hang or waste"
DEEPSPEED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "right": ({**BATCH, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}, {"world": 8}, {}),
    "world unknown": (BATCH, {}, {}),
    "no multiple": ({**BATCH, "train_batch_size": 60}, {}, {"batch-size": FAILS}),
    "another world": (BATCH, {"world": 12}, {"batch-size": FAILS}),
    "model parallel, perhaps": (BATCH, {"world": 16}, {"batch-size": WASTES}),
    "two of three": ({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4}, {}, {"batch-size": FAILS}),
    "not a number": ({**BATCH, "train_batch_size": "64"}, {}, {"batch-size": FAILS}),
    "two precisions": (
        {**BATCH, "bf16": {"enabled": True}, "fp16": {"enabled": True}},
        {},
        {"two-precisions": FAILS},
    ),
    "one precision off": ({**BATCH, "bf16": {"enabled": False}, "fp16": {"enabled": True}}, {}, {}),
    "stage 4": ({"zero_optimization": {"stage": 4}}, {}, {"zero-stage": FAILS}),
    "parameters below stage 3": (
        {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
        {},
        {"offload-without-zero": WASTES},
    ),
    "optimizer in stage 2": ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, {}, {}),
    "optimizer in stage 0": (
        {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
        {},
        {"offload-without-zero": WASTES},
    ),
    "nvme without a path": (
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
        {},
        {"no-nvme-path": FAILS},
    ),
    "auto": ({"train_batch_size": "auto", "zero_optimization": {"stage": 2}}, {}, {"auto-values": "advice"}),
}
TWO = "num_machines: 2\nnum_processes: 8\ndistributed_type: MULTI_GPU\n"
FSDP = "distributed_type: FSDP\nfsdp_config:\n"
EVERYWHERE = {"machines": 2, "starts_everywhere": True}
ACCELERATE: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "right": (TWO, {**EVERYWHERE, "per_machine": 4}, {}),
    "other nodes": (TWO, {"machines": 4, "starts_everywhere": True}, {"machines-differ": WASTES}),
    "nodes in the command": (TWO, {"machines": 4, "in_command": frozenset({"num-machines", "nnodes"})}, {}),
    "uneven": (TWO.replace("8", "7"), {}, {"processes-uneven": WASTES}),
    "per node": (TWO, {"per_machine": 8}, {"processes-per-node": WASTES}),
    "one rank for all": (TWO + "machine_rank: 0\n", EVERYWHERE, {"one-machine-rank": WASTES}),
    "c10d": (TWO + "machine_rank: 0\nrdzv_backend: c10d\n", EVERYWHERE, {}),
    "no precision": (TWO + "mixed_precision: no\n", {}, {}),
    "a precision of its own": (TWO + "mixed_precision: bfloat16\n", {}, {"mixed-precision": FAILS}),
    "DeepSpeed twice": (
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n  zero_stage: 2\n",
        {},
        {"deepspeed-twice": FAILS},
    ),
    "FSDP without its type": (
        TWO + "fsdp_config:\n  fsdp_offload_params: true\n",
        {},
        {"section-without-effect": WASTES},
    ),
    "a strategy": (FSDP + "  fsdp_sharding_strategy: FULLSHARD\n", {}, {"fsdp-value": FAILS}),
    "a strategy by number": (FSDP + "  fsdp_sharding_strategy: 1\n", {}, {}),
    "loads on one rank": (
        FSDP + "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_sync_module_states: false\n",
        {},
        {"fsdp-loading": FAILS},
    ),
}


def found(path: Path, job: dict[str, Any]) -> dict[str, str]:
    return {finding.code: finding.kind for finding in file_findings(read_launcher_file(path), JobOfFile(**job))}


@pytest.mark.parametrize("name", DEEPSPEED)
def test_contradictions_in_deepspeeds_file_are_found(name: str, tmp_path: Path) -> None:
    table, job, expected = DEEPSPEED[name]
    (tmp_path / "ds.json").write_text(json.dumps(table, indent=2))
    assert found(tmp_path / "ds.json", job) == expected


@pytest.mark.parametrize("name", ACCELERATE)
def test_contradictions_in_accelerates_file_are_found(name: str, tmp_path: Path) -> None:
    text, job, expected = ACCELERATE[name]
    (tmp_path / "a.yaml").write_text(text)
    assert found(tmp_path / "a.yaml", job) == expected


def test_frogs_own_launcher_files_have_no_traps() -> None:
    for path in [*(ROOT / "config").glob("deepspeed_*.json"), *(ROOT / "config").glob("accelerate*.yaml")]:
        assert set(found(path, {}).values()) <= {"advice"}, path


JOB = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=1
#SBATCH --time=1:00:00
"""


def test_job_file_is_compared_with_the_file_that_deepspeed_gets(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({**BATCH, "train_batch_size": 40}, indent=2))
    command = "CONFIG=ds.json\nsrun torchrun --nnodes=2 --nproc-per-node=4 train.py --deepspeed $CONFIG\n"
    findings = explain(JOB + command, Path("job.sbatch"), None, (tmp_path,)).findings
    (finding,) = [finding for finding in findings if finding.code == "batch-size"]
    assert (finding.kind, finding.line) == ("will fail", 7)
    assert finding.what == "ds.json:2: train_batch_size 40, but 4 x 2 x 8 processes = 64"
    assert not [f for f in explain(JOB + command, Path("job.sbatch"), None, ()).findings if f.code == "batch-size"]


def test_job_file_is_compared_with_the_file_that_accelerate_gets(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TWO.replace("2", "4", 1) + "machine_rank: 0\n")
    command = "srun accelerate launch --config_file a.yaml train.py\n"
    findings = explain(JOB + command, Path("job.sbatch"), None, (tmp_path,)).findings
    assert [(f.code, f.line) for f in findings if "a.yaml" in f.what] == [("machines-differ", 6)]


def test_every_file_that_a_command_names_is_read(tmp_path: Path) -> None:
    """One that cannot be read, one that does not exist, or one named twice, does not hide the next."""
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "ds.json").write_text(json.dumps({**BATCH, "train_batch_size": 60}))
    (tmp_path / "more.json").write_text(json.dumps({"zero_optimization": {"stage": 4}}))
    names = ("broken.json", "none.json", "ds.json", "ds.json", "more.json")
    words = " ".join(f"--deepspeed {name}" for name in names)
    findings = explain(JOB + f"srun python train.py {words}\n", Path("job.sbatch"), None, (tmp_path,)).findings
    found = [(finding.code, finding.what.partition(":")[0].rpartition("/")[2]) for finding in findings]
    assert sorted(name for _, name in found if name.endswith(".json")) == ["broken.json", "ds.json", "more.json"]
    assert {code for code, _ in found} >= {"unreadable-configuration", "batch-size", "zero-stage"}


def test_command_explains_a_file_for_the_job_in_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(BATCH, indent=2))
    assert main(["slurm", "explain", str(path)]) == 0
    assert "no traps" in capsys.readouterr().out
    assert main(["slurm", "explain", str(path), "--nodes", "3", "--gpus-per-node", "4"]) == 1
    shown = capsys.readouterr().out
    assert f"{path}:2: will fail [batch-size] train_batch_size 64, but 4 x 2 x 12 processes = 96" in shown
    assert main(["slurm", "explain", str(path), "--json", "--ntasks", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize(
    ("options", "world"),
    [
        ("", None),
        ("--nodes 3", None),
        ("--ntasks-per-node 4", None),
        ("--gpus-per-node 4", 4),
        ("--nodes 3 --gpus-per-node 4", 12),
        ("--nodes 3 --ntasks-per-node 2", 6),
        ("--nodes 3 --ntasks-per-node 2 --gpus-per-node 4", 12),
        ("--nodes 3 --gpus-per-node 4 --ntasks 8", 8),
        ("--nodes x --gpus-per-node 4", 4),
    ],
)
def test_options_of_the_job_say_how_many_processes_use_the_file(
    options: str, world: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}}))
    assert main(["slurm", "explain", str(tmp_path / "ds.json"), "--json", *options.split()]) == 0
    (about,) = json.loads(capsys.readouterr().out)["summary"]
    assert re.findall(r"(\d+) processes", about) == ([] if world is None else [str(world)])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ds.json", "{", "ds.json:1: not valid JSON"),
        ("ds.json", "[" * 100_000, "nested too deeply"),
        ("ds.json", '{"train_batch_size": ' + "9" * 6000 + "}", "cannot be read"),
        ("a.yaml", "a: [", "cannot be read"),
        ("a.yaml", "x: 1\n", "neither DeepSpeed's JSON nor accelerate's YAML"),
        ("a.yaml", "apiVersion: v1\nkind: Pod\n", "a Kubernetes manifest"),
    ],
)
def test_other_files_are_refused(
    name: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["slurm", "explain", str(tmp_path / name)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
