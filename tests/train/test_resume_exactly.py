"""A resumed run equals the uninterrupted one bit for bit: weights and all state of the optimizer.

`recorded/` holds two checkpoints of one uninterrupted run, after steps 3 and 6, that Frog wrote before its optimizers
had entries (`small_training.py`, AdamW with a warm-up of 2 steps, seed 0). They are never rewritten: they keep the
format readable.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_training import SmallTraining, small_run, tensors_of

from frog.core.config import OptimizerConfig
from frog.core.config.optimizers import OPTIMIZERS
from frog.core.config.strategies import DATA_STRATEGIES
from frog.core.errors import CheckpointError
from frog.core.runs.folder import RunFolder
from frog.train.checkpoint.load import open_checkpoint

RECORDED = RunFolder(Path(__file__).parent / "recorded")
POSSIBLE = [
    (optimizer, strategy)
    for optimizer in OPTIMIZERS
    for strategy in DATA_STRATEGIES
    if not small_run(OptimizerConfig(optimizer), strategy).problems()
]


def differences(one: RunFolder, other: RunFolder, step: int) -> list[str]:
    """Return the names of the tensors that differ between two checkpoints, compared bit for bit."""
    a, b = (tensors_of(open_checkpoint(folder.checkpoint(step))) for folder in (one, other))
    return [
        name
        for name in sorted(a.keys() | b.keys())
        if name not in a or name not in b or not torch.equal(a[name], b[name])
    ]


@pytest.mark.parametrize(("optimizer", "strategy"), POSSIBLE)
def test_resumed_run_equals_the_uninterrupted_run(optimizer: str, strategy: str, tmp_path: Path) -> None:
    config, folder = small_run(OptimizerConfig(optimizer, warmup_steps=2), strategy), RunFolder(tmp_path)
    uninterrupted = SmallTraining(config, seed=0)
    uninterrupted.train_until(3)
    uninterrupted.save(folder)
    uninterrupted.train_until(6)
    uninterrupted.save(folder)
    resumed = SmallTraining(config, seed=1)
    resumed.load(open_checkpoint(folder.checkpoint(3)))
    resumed.train_until(6)
    resumed.save(RunFolder(tmp_path / "resumed"))
    assert differences(RunFolder(tmp_path / "resumed"), folder, step=6) == []
    tensors = open_checkpoint(folder.checkpoint(6)).manifest.tensors
    kept = {name.split("/")[1] for name in tensors if name.startswith("optimizer/")}
    assert kept >= set(config.optimizer.state)


def test_checkpoint_of_an_earlier_frog_resumes_exactly(tmp_path: Path) -> None:
    config, recorded = small_run(OptimizerConfig(warmup_steps=2)), open_checkpoint(RECORDED.checkpoint(3))
    resumed = SmallTraining(config, seed=1)
    resumed.load(recorded)
    resumed.save(RunFolder(tmp_path / "resumed"))
    assert differences(RunFolder(tmp_path / "resumed"), RECORDED, step=3) == []
    resumed.train_until(6)
    resumed.save(RunFolder(tmp_path / "resumed"))
    found, expected = (
        tensors_of(open_checkpoint(one.checkpoint(6))) for one in (RunFolder(tmp_path / "resumed"), RECORDED)
    )
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
    uninterrupted = SmallTraining(config, seed=0)
    uninterrupted.train_until(3)
    uninterrupted.save(RunFolder(tmp_path / "uninterrupted"))
    if differences(RunFolder(tmp_path / "uninterrupted"), RECORDED, step=3) == []:  # equal CPUs round alike
        assert differences(RunFolder(tmp_path / "resumed"), RECORDED, step=6) == []


def test_checkpoint_of_another_optimizer_is_rejected(tmp_path: Path) -> None:
    training = SmallTraining(small_run(OptimizerConfig("sgd")), seed=1)
    with pytest.raises(CheckpointError, match=r"this model and optimizer: 2\d tensors\n  - optimizer/momentum_buffer/"):
        training.load(open_checkpoint(RECORDED.checkpoint(3)))
