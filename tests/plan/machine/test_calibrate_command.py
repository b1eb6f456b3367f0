"""`frog plan calibrate`: what it asks to be measured, the file, and what it prints. Nothing is measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frog.cli import main
from frog.core.errors import UsageError
from frog.plan.machine import calibration
from frog.plan.machine.request import Request
from frog.plan.machine.world import worlds_of


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Request]:
    """Note each request, and answer it with a text."""
    requests: list[Request] = []

    def calibrate(request: Request) -> Any:
        requests.append(request)
        return SimpleNamespace(text="gpus_per_node = 4\n")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibration, "calibrate", calibrate)
    monkeypatch.setattr(calibration, "summary_lines", lambda found: iter(["a machine", "its rates"]))
    return requests


def test_calibrate_writes_the_profile_and_says_how_to_use_it(
    asked: list[Request], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "calibrate", "--threads", "3"]) == 0
    assert Path("machine.toml").read_text() == "gpus_per_node = 4\n"
    assert capsys.readouterr().out.splitlines() == [
        "a machine",
        "its rates",
        "machine.toml: use it with frog plan RUN.toml --cluster machine.toml",
    ]
    (request,) = asked
    assert request.worlds == ((1, 3), (2, 3), (4, 3))
    assert request.precisions == ("fp32", "bf16")


def test_quick_calibration_measures_less(asked: list[Request]) -> None:
    assert main(["plan", "calibrate", "--quick", "--ranks", "2", "--to", "own.toml", "--threads", "1"]) == 0
    assert Path("own.toml").exists()
    (request,) = asked
    full = Request(request.worlds, request.cores)
    assert request.worlds == ((1, 1), (2, 1))
    assert request.precisions == ("fp32",)
    for field in ("layers", "product_widths", "optimizer_numels", "payload_bytes"):
        assert len(getattr(request, field)) < len(getattr(full, field)), field
    assert request.memory_numel < full.memory_numel


@pytest.mark.parametrize("path", ["folder", "none/machine.toml"])
def test_profile_that_cannot_be_written_is_refused_before_anything_is_measured(
    path: str, asked: list[Request], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("folder").mkdir()
    assert main(["plan", "calibrate", "--to", path]) == UsageError.exit_code
    assert f"error: --to {path}: not a file in an existing folder" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (16, [1, 2, 4, 8, 16]), (6, [1, 2, 4])]
)
def test_worlds_are_powers_of_two(most: int, sizes: list[int]) -> None:
    assert worlds_of(most, 2) == tuple((size, 2) for size in sizes)
    assert [size for size, _ in worlds_of(most, None)] == sizes
