"""`frog collectives bench`: what is measured, and how it is told."""

from __future__ import annotations

import json

import pytest
from harness import Harness

from frog.collectives.cost import Costs, kept
from frog.gauge.bench import sizes, table
from frog.gauge.measurement import OPERATIONS, Row


def test_bandwidths_are_those_of_nccl_tests() -> None:
    def bus(operation: str) -> float:
        return Row(operation, 1000, "frog", 1.0, 5).bus_bytes_per_s(4)

    assert [bus(operation) for operation in OPERATIONS] == [1500, 750, 750, 750, 1000]


def test_the_table_says_how_many_times_as_fast_as_gloo() -> None:
    rows = [Row("all_reduce", 4096, "frog", 1e-5, 5), Row("all_reduce", 4096, "gloo", 4e-4, 5)]
    text = table(rows, 2, 5e9, several_nodes=False)
    assert "40.00" in text
    assert "10.0 us" in text
    assert "5.0 GB/s each" in text


def test_sizes_are_read() -> None:
    assert sizes("4KiB,1MiB,8b") == (4096, 1 << 20, 8)


@pytest.mark.parametrize("words", ["4TiB", "1", "-4KiB", "4096MiB", "KiB"])
def test_sizes_that_cannot_be(words: str, harness: Harness) -> None:
    done = harness.run("frog", "collectives", "bench", "--nproc", "2", "--sizes", words, code=2)
    assert "sizes from 4B to 1024MiB" in done.stderr or "expected one argument" in done.stderr


@pytest.mark.slow
def test_every_operation_is_measured(harness: Harness) -> None:
    words = ("--nproc", "2", "--against", "gloo,tcp", "--sizes", "4KiB", "--rounds", "1", "--json")
    done = harness.run("frog", "collectives", "bench", *words, "--operations", ",".join(OPERATIONS))
    found = json.loads(done.stdout)
    assert [(row["operation"], row["contender"]) for row in found["rows"]] == [
        (operation, name) for operation in OPERATIONS for name in ("frog", "gloo", "tcp")
    ]
    assert all(row["time_s"] > 0 and row["num_bytes"] == 4096 for row in found["rows"])


@pytest.mark.slow
def test_a_machine_is_tuned(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROG_CACHE_DIR", str(harness.root / ".cache"))
    done = harness.run("frog", "collectives", "tune", "--nproc", "2", "--rounds", "2")
    assert "the ring from" in done.stdout
    assert kept() != Costs()
    assert "--nproc 2" in harness.run("frog", "collectives", "tune", "--nproc", "3", code=2).stderr
