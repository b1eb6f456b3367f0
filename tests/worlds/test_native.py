"""The native implementations equal one process, pass their state on, and report their traffic."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from harness import Harness

from frog.core.config.optimizers import OPTIMIZERS
from frog.train.prove.matrix import ALL_VARIANTS, DEFAULT_VARIANTS, SMALL_MODEL, Cell, cells, proofs
from frog.train.prove.prove_commands import prove
from frog.train.prove.prove_files import ProofResult

pytestmark = pytest.mark.slow

WORKER = Path(__file__).parent / "native_worker.py"
KINDS = [kind for kind in ("torch", "deepspeed") if kind != "deepspeed" or find_spec("deepspeed") is not None]
WITH_PRECISION = [*DEFAULT_VARIANTS, *(one for one in ALL_VARIANTS if one.recompute or one.precision != "fp32")]
OTHER_OPTIMIZERS = [one for one in ALL_VARIANTS if one.optimizer != "adamw"]
ON_PARTS = [one for one in OTHER_OPTIMIZERS if not OPTIMIZERS[one.optimizer].needs_whole_matrices]
ON_MATRICES = [one for one in OTHER_OPTIMIZERS if one not in ON_PARTS]
WANTED = [
    *cells(SMALL_MODEL, [2], KINDS, WITH_PRECISION),
    *cells(SMALL_MODEL, [2], ["torch"], ON_PARTS),
    *cells(SMALL_MODEL, [1, 4], KINDS, DEFAULT_VARIANTS[1:]),
]
WHERE_MATRICES_ARE_WHOLE = [cell for cell in cells(SMALL_MODEL, [2], ["torch"], ON_MATRICES) if isinstance(cell, Cell)]
CELLS = [*(cell for cell in WANTED if isinstance(cell, Cell)), *WHERE_MATRICES_ARE_WHOLE]


@pytest.fixture(scope="module")
def proved() -> dict[int, ProofResult]:
    return {id(cell): result for cell, result in prove(CELLS)}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "cell", CELLS, ids=lambda cell: f"{cell.world_size} {cell.implementation} {cell.strategy}, {cell.variant.name}"
)
def test_native_strategy_equals_one_process(proved: dict[int, ProofResult], cell: Cell) -> None:
    result = proved[id(cell)]
    assert result.equal, result.first


def test_native_proofs_cover_every_strategy() -> None:
    assert [reason for reason in WANTED if isinstance(reason, str)] == []
    proved = {(cell.implementation, cell.strategy) for cell in CELLS}
    assert {(kind, name) for kind in KINDS for name in proofs(kind)} - proved == {("torch", "dp x tp x pp")}, "8 ranks"
    assert {cell.variant for cell in WHERE_MATRICES_ARE_WHOLE if cell.strategy == "ddp"} == set(ON_MATRICES)


@pytest.fixture(scope="module")
def found(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("native") / "found.json"
    harness.run("frog", "run", "--nproc", "2", "--threads", "1", "--", str(WORKER), str(path), limit_s=720)
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_state_passed_between_strategies_equals_one_process(found: dict[str, Any]) -> None:
    """Weights, moments and step counts are passed on bit for bit."""
    relay = found["relay"]
    assert relay["equal"], relay["first"]
    assert relay["exact"]
    assert all(relay["exact"].values()), relay["exact"]


def test_native_evaluation_equals_one_process(found: dict[str, Any]) -> None:
    assert max(found["relay"]["evaluation"].values()) < 1e-6


def test_scaled_loss_gives_the_same_step(found: dict[str, Any]) -> None:
    assert all(found["scaled"].values()), found["scaled"]


def test_ddp_reports_the_traffic_of_its_buckets(found: dict[str, Any]) -> None:
    hooks = found["hooks"]
    whole = hooks["off"]["gradient_bytes"]
    assert len(hooks["off"]["bytes"]) > 2
    assert sum(hooks["off"]["bytes"]) == pytest.approx(whole, rel=0.01)
    for half in ("fp16", "bf16"):
        assert sum(hooks[half]["bytes"]) == pytest.approx(whole / 2, rel=0.01)
    assert sum(hooks["powersgd"]["bytes"]) < whole / 4
    assert all(hook["times"] for hook in hooks.values())
    assert hooks["off"]["spans"] == [["forward", 0], ["backward", 0], ["forward", 1], ["backward", 1]]


def test_compressed_training_stays_close(found: dict[str, Any]) -> None:
    """The hooks change the numbers: the loss decreases as without them, within each hook's error."""
    exact = found["hooks"]["off"]["losses"]
    fall = exact[0] - exact[-1]
    assert fall > 0.3
    for compression, allowed in (("fp16", 1e-3), ("bf16", 1e-3), ("powersgd", 0.25)):
        losses = found["hooks"][compression]["losses"]
        worst = max(abs(a - b) for a, b in zip(losses, exact, strict=True))
        assert 0 < worst < allowed * fall, compression
        assert all(math.isfinite(loss) for loss in losses)


def test_powersgd_keeps_its_residual_error(found: dict[str, Any]) -> None:
    assert found["hooks"]["powersgd"]["error_feedback"] > 0
    assert found["hooks"]["off"]["error_feedback"] == 0


def test_every_planted_mistake_is_detected(found: dict[str, Any]) -> None:
    assert len(found["mutants"]) >= 6
    assert all(found["mutants"].values()), found["mutants"]
