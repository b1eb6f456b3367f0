"""`frog collectives bench`: its measurements, and its output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from harness import Harness

from frog.core.errors import UsageError
from frog.measure.peers.bench import sizes, table
from frog.measure.peers.measurement import OPERATIONS, Limit, Result, Row
from frog.measure.peers.open_mpi import mpirun
from frog.measure.peers.report import Scale, write_report
from frog.train.comm.collectives.cost import Costs, saved_costs

RESULT = Result(
    num_ranks=4,
    several_nodes=False,
    rows=(Row("all_reduce", 4000, "frog", 1e-5, 5), Row("all_reduce", 4000, "gloo", 4e-4, 5)),
    limits=(Limit("memory", 4000, 2.5e-6), Limit("sockets", 4000, 1e-4)),
)
"""frog: 0.4 GB/s, bus bandwidth 0.6; memory 1.6 GB/s. gloo: 0.01 and 0.015; sockets 0.04."""


def test_bandwidths_follow_nccl_tests() -> None:
    def bus(operation: str) -> float:
        return Row(operation, 1000, "frog", 1.0, 5).bus_bytes_per_s(4)

    assert [bus(operation) for operation in OPERATIONS] == [1500, 750, 750, 750, 1000]


def test_table_shows_the_speed_relative_to_gloo_and_to_the_limit() -> None:
    frog, gloo = (line.split() for line in table(RESULT).splitlines() if line.startswith("all_reduce"))
    assert frog[2:] == ["frog", "10.0", "us", "0.400", "0.600", "37.5%", "40.00"]
    assert gloo[2:] == ["gloo", "400.0", "us", "0.010", "0.015", "37.5%"]


def test_sockets_are_the_limit_between_nodes() -> None:
    far = Result(4, True, RESULT.rows, RESULT.limits)
    assert [RESULT.limit_name(name) for name in ("frog", "mpi", "tcp", "gloo")] == ["memory"] * 2 + ["sockets"] * 2
    assert far.share_of_limit(far.rows[0]) == pytest.approx(0.6 / 0.04)


def test_report_draws_every_library_and_its_limit(tmp_path: Path) -> None:
    rows = [Row("all_reduce", 10**size, name, 1e-5, 5) for size in (3, 5) for name in ("frog", "gloo")]
    limits = [Limit(name, 10**size, 1e-6) for size in (3, 5) for name in ("memory", "sockets")]
    html = write_report(Result(2, False, tuple(rows), tuple(limits)), tmp_path / "bench.html").read_text()
    assert html.count("<svg") == 2
    assert html.count('<path style="stroke: var(--frog)" d="M72.0') == 2
    assert html.count('<path class="limit"') == 2  # only next to busbw
    assert "gloo / it" in html


def test_logarithmic_axis_maps_powers_to_equal_distances() -> None:
    scale = Scale(1, 100, 0, 200)
    assert [scale.place(value) for value in (1, 10, 100)] == [0, 100, 200]
    assert Scale(7, 7, 0, 200).place(7) == 100


def test_missing_open_mpi_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="mpirun not found"):
        mpirun(2, ["true"])
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho HYDRA build details\n")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(UsageError, match=r"does not belong to Open MPI.*HYDRA"):
        mpirun(2, ["true"])


def test_open_mpi_rejects_simulated_nodes(harness: Harness) -> None:
    done = harness.run("frog", "collectives", "bench", "--nodes", "2x1", "--against", "mpi", code=2)
    assert "on one node" in done.stderr


def test_sizes_are_parsed() -> None:
    assert sizes("4KiB,1MiB,8b") == (4096, 1 << 20, 8)


@pytest.mark.parametrize("words", ["4TiB", "1", "-4KiB", "4096MiB", "KiB"])
def test_invalid_sizes_are_rejected(words: str, harness: Harness) -> None:
    done = harness.run("frog", "collectives", "bench", "--nproc", "2", "--sizes", words, code=2)
    assert "sizes from 4B to 1024MiB" in done.stderr or "expected one argument" in done.stderr


@pytest.mark.slow
def test_bench_measures_every_operation(harness: Harness) -> None:
    others = ["gloo", "tcp", *(["mpi"] if shutil.which("mpirun.openmpi") else [])]
    words = ("--nproc", "2", "--sizes", "4KiB", "--rounds", "1", "--json", "--report", "bench.html")
    words += ("--against", ",".join(others), "--operations", ",".join(OPERATIONS))
    result = Result.of(json.loads(harness.run("frog", "collectives", "bench", *words).stdout))
    assert [(row.operation, row.contender) for row in result.rows] == [
        (operation, name) for operation in OPERATIONS for name in ("frog", *others)
    ]
    assert all(one.time_s > 0 and one.num_bytes == 4096 for one in (*result.rows, *result.limits))
    assert [one.name for one in result.limits] == ["memory", "sockets"]
    assert "<svg" in (harness.root / "bench.html").read_text()


@pytest.mark.slow
def test_tune_saves_the_costs_of_a_machine(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROG_CACHE_DIR", str(harness.root / ".cache"))
    done = harness.run("frog", "collectives", "tune", "--nproc", "2", "--rounds", "2")
    assert "the ring from" in done.stdout
    assert saved_costs() != Costs()
    assert "--nproc 2" in harness.run("frog", "collectives", "tune", "--nproc", "3", code=2).stderr
