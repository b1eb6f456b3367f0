"""Backend frog as used by torch: every call of torch.distributed, DDP, FSDP2; a run, and a run with a killed rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Harness

from frog.core.runs import read_run
from frog.core.runs.event_schema import CollectiveEvent

WORKER = str(Path(__file__).parent / "process_group_worker.py")


@pytest.mark.parametrize(
    "world",
    [("--nproc", "2"), pytest.param(("--nodes", "2x2"), marks=pytest.mark.slow)],
    ids=["one machine", "two nodes"],
)
def test_backend_frog_supports_every_torch_call(world: tuple[str, ...], harness: Harness) -> None:
    done = harness.run("frog", "run", *world, "--threads", "1", "--", WORKER)
    assert done.stdout.count("all as expected, through frog") == (2 if "--nproc" in world else 4)


@pytest.mark.slow
def test_run_over_frog_matches_a_run_over_gloo(harness: Harness) -> None:
    for backend in ("gloo", "frog"):
        harness.train(2, f"through-{backend}", f"comm.backend={backend}", "strategy.reduction=overlapped")
    runs = [read_run(harness.folder(f"through-{backend}")) for backend in ("gloo", "frog")]
    sent = [[(event.op, event.axis, event.payload_bytes) for event in run.ranks[0].of(CollectiveEvent)] for run in runs]
    assert sent[0] == sent[1]
    records = [
        json.loads((harness.folder(f"through-{name}").path / "record.json").read_text()) for name in ("gloo", "frog")
    ]
    assert records[0]["weights_sha256"] == records[1]["weights_sha256"], "two numbers have one order"
    assert records[0]["order_sha256"] == records[1]["order_sha256"]
