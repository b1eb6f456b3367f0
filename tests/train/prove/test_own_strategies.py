"""Strategies in files equal one process, in worlds that do not divide anything; planted mistakes are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Harness

from frog.train.prove.matrix import ALL_VARIANTS, DEFAULT_VARIANTS, SMALL_MODEL, Cell, Variant, own_cells
from frog.train.prove.prove_commands import prove
from frog.train.prove.prove_files import ProofResult

ROOT = Path(__file__).parents[3]
HERE = ROOT / "tests/train/parallel/own_strategies"
FILES = [ROOT / "config" / "own_ddp.py", ROOT / "config" / "own_zero1.py", *sorted(HERE.glob("*.py"))]
MUON = [variant for variant in ALL_VARIANTS if variant.name == "muon"]
PLAIN, REST = DEFAULT_VARIANTS


def cells_of(file: Path, worlds: list[int], *variants: Variant) -> list[Cell]:
    found = [cell for cell in own_cells(SMALL_MODEL, worlds, variants, str(file)) if isinstance(cell, Cell)]
    assert len(found) == len(worlds) * len(variants)
    return found


def prove_all(cells: list[Cell]) -> list[tuple[str, ProofResult]]:
    return [(f"{cell.strategy}, {cell.variant.name}, {cell.world_size}", result) for cell, result in prove(cells)]


MISTAKES = {
    "sum": ("config/own_ddp.py", "            p.grad /= self.group.size()\n", "", "norm of the gradient after step 1"),
    "stale": (
        "config/own_zero1.py",
        "dist.broadcast(p.data,",
        "dist.broadcast(p.data.clone(),",
        "loss of the batch after step 2",
    ),
    "last_micro": (
        "tests/train/parallel/own_strategies/zero2.py",
        "part.grad += mine",
        "part.grad.copy_(mine)",
        "norm of the gradient after step 1",
    ),
    "not_zeroed": (
        "tests/train/parallel/own_strategies/fsdp.py",
        "            unit.grad.zero_()",
        "            pass",
        "norm of the gradient after step 2",
    ),
    "first_micro": (
        "tests/train/parallel/own_strategies/bucketed_ddp.py",
        "if self.last and bucket.missing == 0",
        "if not self.last and bucket.missing == 0",
        "norm of the gradient after step 1",
    ),
    "shifted": (
        "tests/train/parallel/own_strategies/zero1_flat.py",
        "tensor.grad = mine[at : at + tensor.numel()]",
        "tensor.grad = mine[: tensor.numel()]",
        "norm of the gradient after step 1",
    ),
}
"""By name: a file, a part of it, the mistake in its place, and the first difference that the proof must find."""


def plant(folder: Path, name: str) -> Path:
    file, right, wrong, _ = MISTAKES[name]
    text = (ROOT / file).read_text()
    assert right in text, name
    (folder / f"{name}.py").write_text(text.replace(right, wrong))
    return folder / f"{name}.py"


@pytest.mark.slow
def test_own_strategies_equal_one_process_and_mistakes_do_not(tmp_path: Path) -> None:
    right = [cell for file in FILES if file.stem != "fsdp2" for cell in cells_of(file, [2], REST)]  # it loads slowly
    wrong = [cell for name in MISTAKES for cell in cells_of(plant(tmp_path, name), [2], REST)]
    results = prove_all([*right, *wrong])
    assert [(name, result.first) for name, result in results[: len(right)] if not result.equal] == []
    for (name, result), (_, _, _, first) in zip(results[len(right) :], MISTAKES.values(), strict=True):
        assert not result.equal, name
        assert result.first is not None
        assert result.first.startswith(first), f"{name}: {result.first}"


@pytest.mark.slow
def test_own_strategies_equal_one_process_in_every_world_and_variant() -> None:
    """The second default variant has accumulated, tied, frozen and uneven parts at once: none is proved by itself here.

    Muon needs whole matrices, which the owners of whole parameters have.
    """
    combined = {"accumulated", "other tying", "frozen", "uneven"}
    elementwise = [variant for variant in ALL_VARIANTS if variant not in MUON and variant.name not in combined]
    cells = [cell for file in FILES for cell in cells_of(file, [1, 3], *DEFAULT_VARIANTS)]
    cells += [cell for file in FILES for cell in cells_of(file, [2], *elementwise)]
    cells += [cell for name in ("own_ddp", "own_zero1") for cell in cells_of(ROOT / f"config/{name}.py", [2], *MUON)]
    assert [(name, result.first) for name, result in prove_all(cells) if not result.equal] == []


@pytest.mark.slow
def test_own_strategies_equal_one_process_in_larger_worlds() -> None:
    cells = [cell for name in ("own_ddp", "own_zero1") for cell in cells_of(ROOT / f"config/{name}.py", [4, 5], REST)]
    assert [(name, result.first) for name, result in prove_all(cells) if not result.equal] == []


@pytest.mark.parametrize(
    ("file", "right", "wrong", "words"),
    [
        (
            "config/own_zero1.py",
            "        for number, (_, p) in enumerate(self.named):\n            dist.reduce",
            "        if self.group.rank() == 1:\n            raise ValueError('only here')\n"
            "        for number, (_, p) in enumerate(self.named):\n            dist.reduce",
            "own.py:24, in reduce: ValueError: only here",
        ),
        pytest.param(
            "config/own_ddp.py",
            "for _, p in self.named:",
            "for _, p in self.named if self.group.rank() else self.named[::-1]:",
            "own.py:20, in reduce: RuntimeError: the ranks call different collectives: rank ",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["on one rank", "another order"],
)
def test_broken_rule_ends_the_proof_with_file_and_line(
    harness: Harness, file: str, right: str, wrong: str, words: str
) -> None:
    text = (ROOT / file).read_text()
    assert right in text
    (harness.root / "own.py").write_text(text.replace(right, wrong))
    done = harness.run("frog", "prove", "--set", "strategy.file=own.py", "--world", "2", code=1)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "strategy.file=none.py"], "strategy.file='none.py': no such file"),
        (["--set", "train.steps=2"], "--set names the one strategy to prove"),
        (["--set", "strategy.file=a.py", "--strategy", "tp"], "--set names the one strategy to prove"),
        (["--set", "strategy.file=a.py", "--set", "strategy.file=b.py"], "--set names the one strategy to prove"),
    ],
)
def test_wrong_settings_of_a_proof_are_refused(harness: Harness, words: list[str], message: str) -> None:
    assert message in harness.run("frog", "prove", *words, code=2).stderr
