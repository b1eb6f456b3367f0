"""Simulated GPUs: what a program for CUDA sees of them, in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness import LIMIT_S

from frog.observe.environment import HOOK, simulated_gpus
from frog.observe.hook.frog_simulated_gpus import num_gpus
from frog.observe.hook.frog_simulated_gpus.replace import summary

PROGRAM = Path(__file__).with_name("simulated_program.py")
ASK_FIRST = "import importlib.util, runpy, sys; importlib.util.find_spec('torch'); runpy.run_path(sys.argv[1])"
"""Runs a program after a question whether torch exists, as transformers asks before it imports torch."""
ORDINAL = "AcceleratorError: CUDA error: invalid device ordinal"


@pytest.fixture(scope="module")
def result() -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **simulated_gpus(2), "CUDA_VISIBLE_DEVICES": "0,1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK_FIRST, PROGRAM], env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def seen(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
def test_every_replaced_name_exists_in_torch(seen: dict[str, Any]) -> None:
    assert seen["missing"] == []
    assert len(seen["replaced"]) > 200


def test_no_public_function_of_torch_cuda_reaches_the_driver(seen: dict[str, Any]) -> None:
    harmless = {"make_graphed_callables", "CudaError", "DeferredCudaCallError", "check_error", "cudaStatus"}
    storages = {name for name in seen["untouched"] if name.endswith("Storage")}
    assert set(seen["untouched"]) - harmless - storages == set()


def test_devices_have_the_names_of_gpus(seen: dict[str, Any]) -> None:
    assert (seen["count"], seen["available"]) == (2, [True, True])
    assert seen["named"] == ["cuda:1", "cuda:0", True]
    assert seen["devices"] == ["cpu", "cuda:1", "cuda:1", "cuda:1"]
    assert seen["is_cuda"] == [False, True, False, True]
    assert (seen["inside"], seen["current"]) == (0, [1, 1, -1])
    assert (seen["meta"], seen["context"]) == ("meta", "cuda:1")
    assert seen["name"] == "simulated GPU (CPU)"


def test_gpu_beyond_the_last_has_the_error_of_cuda(seen: dict[str, Any]) -> None:
    assert [error.splitlines()[0] for error in seen["beyond"]] == [ORDINAL] * len(seen["beyond"])


def test_copies_between_cpu_and_gpu_are_real(seen: dict[str, Any]) -> None:
    assert (seen["snapshot"], seen["host"]) == ([1, 1], [1, 1])
    assert seen["same"]
    assert seen["leaf"]
    assert seen["loaded"] == [[2, 2]] * 5
    assert seen["pickled"] == "cuda"


def test_random_numbers_and_mixed_precision_work(seen: dict[str, Any]) -> None:
    assert seen["generator"] == [True, True]
    assert seen["random"]
    assert seen["autocast"] == ["torch.bfloat16", True, True]
    assert seen["scaler"] == [True, 65536.0]


def test_torchscript_compiles_constructors(seen: dict[str, Any]) -> None:
    assert seen["scripted"] == [2, 2]


def test_times_and_memory_are_those_of_the_process(seen: dict[str, Any]) -> None:
    assert seen["elapsed"]
    assert seen["memory"] == [True, True]


def test_what_needs_a_gpu_is_refused_by_name(seen: dict[str, Any]) -> None:
    assert seen["refused"] == ["RuntimeError: torch.cuda.MemPool is not simulated: it needs a real GPU"]


def test_cuda_graph_computes_only_when_it_is_replayed(seen: dict[str, Any]) -> None:
    assert seen["capturing"]
    assert seen["captured"] == [True, False]
    assert seen["replayed"] == [True, True]
    assert seen["graphed"]


def test_reading_a_number_inside_a_cuda_graph_fails_as_with_cuda(seen: dict[str, Any]) -> None:
    assert "CUDA error: operation not permitted when stream is capturing" in seen["synchronizing"]


def test_flex_attention_has_gradients(seen: dict[str, Any]) -> None:
    assert seen["flex"] == [True, True]


def test_flash_attn_can_be_imported_but_is_not_installed(seen: dict[str, Any]) -> None:
    assert seen["flash"] == [True, True]
    assert seen["unknown"].startswith("RuntimeError: flash_attn.bert_padding.pad_input is not simulated")


def test_calls_without_effect_are_listed_at_the_end(result: subprocess.CompletedProcess[str]) -> None:
    expected = "3 calls had no effect: torch.cuda.empty_cache, torch.cuda.set_per_process_memory_fraction"
    assert result.stderr.splitlines()[-1] == f"simulated GPUs: {expected}"


@pytest.mark.parametrize(
    ("asked", "visible", "count"),
    [
        ("4", None, 4),
        ("4", "2,3", 2),
        ("4", "3,9,1", 1),
        ("4", "", 0),
        ("4", "1,1", 1),
        ("slurm", "0,1,2", 3),
        ("slurm", None, None),
        ("slurm", "", None),
        ("", "0", None),
        ("0", None, None),
        ("two", None, None),
    ],
)
def test_visible_devices_select_simulated_gpus(
    asked: str, visible: str | None, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROG_SIMULATE_GPUS", asked)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert num_gpus() == count


def test_summary_lists_each_name_once() -> None:
    assert summary(Counter({"a.b": 1}), ["c"]) == [
        "simulated GPUs: c",
        "simulated GPUs: 1 call had no effect: a.b",
    ]
    assert summary(Counter(), []) == []


def test_environment_keeps_the_observer_and_the_path() -> None:
    found = simulated_gpus(None, {"FROG_HOOKS": "frog_observer", "PYTHONPATH": f"{HOOK}{os.pathsep}/x"})
    assert found == {
        "FROG_SIMULATE_GPUS": "slurm",
        "FROG_HOOKS": "frog_observer,frog_simulated_gpus",
        "PYTHONPATH": f"{HOOK}{os.pathsep}/x",
    }
