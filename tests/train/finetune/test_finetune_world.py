"""Fine-tuning in a world equals one process: adapters, losses and scores, for all data-parallel strategies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_cases import CASES, MUTANTS, STRATEGIES, run_case
from harness import Harness
from safetensors.torch import load_file

from frog.core.env import world_env
from frog.core.runs import read_run
from frog.core.runs.event_schema import CollectiveEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.train.comm import World
from frog.train.model.adapter import WEIGHTS_FILE

pytestmark = pytest.mark.slow

WORKER = Path(__file__).parent / "finetune_worker.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run every case in one process; return the folder and the records."""
    root = tmp_path_factory.mktemp("alone")
    world = World(world_env(), torch.device("cpu"), timeout_s=60)
    return root, {case: run_case(world, root / case, case, STRATEGIES["ddp"]) for case in CASES}


@pytest.fixture(scope="module")
def spread(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run every case and strategy in one world of two."""
    root = tmp_path_factory.mktemp("spread")
    harness.run(
        "frog", "run", "--nproc", "2", "--", str(WORKER), str(root), ",".join([*STRATEGIES, *MUTANTS]), limit_s=510
    )
    return root


def losses(folder: Path) -> list[float]:
    return [event.loss_mean for event in read_run(RunFolder(folder)).main.by_step(StepEvent).values()]


def norms(folder: Path) -> list[float]:
    return [event.grad_norm for event in read_run(RunFolder(folder)).main.by_step(StepEvent).values()]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_world_of_two_equals_one_process(
    alone: tuple[Path, dict[str, Any]], spread: Path, strategy: str, case: str
) -> None:
    root, records = alone
    mine, theirs = spread / strategy / case, root / case
    assert len(losses(theirs)) == 6
    torch.testing.assert_close(losses(mine), losses(theirs), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norms(mine), norms(theirs), rtol=1e-4, atol=1e-7)
    expected = load_file(theirs / "adapter" / WEIGHTS_FILE)
    found = load_file(mine / "adapter" / WEIGHTS_FILE)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}")
    told = [json.loads((mine / f"record_{rank}.json").read_text()) for rank in range(2)]
    assert told[0]["weights_sha256"] == told[1]["weights_sha256"]
    assert told[0]["classification"] == told[1]["classification"] == records[case]["classification"]
    assert told[0]["eval"]["loss"] == pytest.approx(records[case]["eval"]["loss"], rel=1e-4)


def test_finetuning_changes_only_trained_parameters(alone: tuple[Path, dict[str, Any]]) -> None:
    for case in CASES:
        weights = load_file(alone[0] / case / "adapter" / WEIGHTS_FILE)
        assert weights
        assert all(tensor.abs().max() > 0.01 for name, tensor in weights.items() if "lora_B" in name)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutated_implementations_are_detected(alone: tuple[Path, dict[str, Any]], spread: Path, mutant: str) -> None:
    def holds(case: str) -> bool:
        try:
            test_world_of_two_equals_one_process(alone, spread, mutant, case)
        except AssertionError:
            return False
        return True

    assert not all(map(holds, CASES))


def test_frozen_weights_cause_no_traffic(spread: Path) -> None:
    """With ddp, a step only sends the gradients of trained parameters, and a few numbers."""
    events = read_run(RunFolder(spread / "ddp" / "two projections")).main
    sent = [e.payload_bytes for e in events.of(CollectiveEvent) if e.op == "all_reduce" and e.step == 2]
    trained = sum(t.nbytes for t in load_file(spread / "ddp" / "two projections" / "adapter" / WEIGHTS_FILE).values())
    gradient = max(sent)
    assert trained <= gradient < trained + 1024
