"""Arguments that once caused a traceback or a hang, found by trying each option with wrong words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frog.cli import main

CLUSTER = {
    "format": 1,
    "kind": "slurm",
    "site": {
        "name": "frog-01234567", "folder": "/nowhere", "scratch": "/tmp/frog-slurm-x", "host": "a",
        "address": "127.0.0.1", "user": "me", "ports": [4000], "first_job": 1,
    },
    "shape": {"nodes": 2, "gpus_per_node": 0, "cpus_per_node": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("schedule", "--stages", "2", "--micro-batches", "2147483648"), "more than 100,000 passes"),
        (("join", "one", "--timeout", "nan"), "between 0 and 86400 s"),
        (("collectives", "bench", "--nodes", ""), "expected NODESxRANKS"),
        (("slurm", "status", "--folder", "."), "$.site.ports: found 1, expected"),
    ],
)
def test_wrong_argument_is_reported(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.json").write_text(json.dumps(CLUSTER))
    assert main(words) == 2
    assert said in capsys.readouterr().err
