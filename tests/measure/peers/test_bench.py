"""`frog collectives bench`: its measurements, and its output."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from harness import Harness

from frog.cli import main
from frog.core.errors import LaunchError, UsageError
from frog.core.units import format_bytes
from frog.launch.node_agents import Options
from frog.launch.nodes import Nodes
from frog.measure.peers import bench, tune
from frog.measure.peers.bench import sizes, table
from frog.measure.peers.measurement import OPERATIONS, Limit, Request, Result, Row, read_request
from frog.measure.peers.open_mpi import mpirun
from frog.measure.peers.report import Scale, _chart, _charts, _rows, write_report
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
    assert table(RESULT).splitlines() == [
        "4 ranks on one node, float32, one thread each; medians of alternating rounds, the slowest rank's time",
        "  frog  automatic choice: memory within a node, TCP between nodes",
        "  gloo  torch's own",
        "",
        "operation           bytes  by           time     algbw     busbw  of limit  gloo / it",
        "all_reduce           4000  frog      10.0 us     0.400     0.600     37.5%      40.00",
        "all_reduce           4000  gloo     400.0 us     0.010     0.015     37.5%",
        "",
        "GB/s. Limits, measured in the same run with buffers of the same size:",
        "  memory (copying the buffer, on all ranks at the same time), of frog:",
        "                     4000             2.5 us     1.600",
        "  sockets (each rank sends the buffer to the next over a plain socket, all at the same time), of gloo:",
        "                     4000           100.0 us     0.040",
    ]


def test_table_without_gloo_has_no_column_for_it() -> None:
    alone = Result(4, True, RESULT.rows[:1], RESULT.limits)
    assert table(alone).splitlines()[:5] == [
        "4 ranks on several nodes, float32, one thread each; medians of alternating rounds, the slowest rank's time",
        "  frog  automatic choice: memory within a node, TCP between nodes",
        "",
        "operation           bytes  by           time     algbw     busbw  of limit",
        "all_reduce           4000  frog      10.0 us     0.400     0.600   1500.0%",
    ]
    assert table(alone).splitlines()[-2].endswith("all at the same time), of frog:")
    assert alone.times_gloo(alone.rows[0]) is None


def test_gloo_of_the_same_operation_and_size_is_compared() -> None:
    rows = tuple(
        Row(operation, size, name, time_s, 5)
        for operation, size, name, time_s in (
            ("all_reduce", 4000, "gloo", 1.0), ("broadcast", 4000, "gloo", 2.0), ("all_reduce", 8000, "gloo", 3.0),
            ("all_reduce", 8000, "frog", 6.0), ("broadcast", 4000, "frog", 1.0), ("broadcast", 8000, "frog", 1.0),
        )
    )  # fmt: skip
    result = Result(4, False, rows, ())
    assert [result.times_gloo(row) for row in rows] == [None, None, None, 0.5, 2.0, None]
    assert (result.contenders, result.operations) == (["gloo", "frog"], ["all_reduce", "broadcast"])


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


def test_names_in_a_report_are_escaped(tmp_path: Path) -> None:
    rows = [Row("<scan>", 4000, name, 1e-5, 5) for name in ("frog", "gloo")]
    html = write_report(Result(2, False, tuple(rows), RESULT.limits), tmp_path / "bench.html").read_text()
    assert "&lt;scan&gt;" in html
    assert "<scan>" not in html


def test_logarithmic_axis_maps_powers_to_equal_distances() -> None:
    scale = Scale(1, 100, 0, 200)
    assert [scale.place(value) for value in (1, 10, 100)] == [0, 100, 200]
    assert Scale(7, 7, 0, 200).place(7) == 100


def test_chart_has_lines_limits_sizes_and_a_grid_of_whole_powers_of_ten() -> None:
    chart = _chart("busbw", {"frog": [(1000, 2e8), (100_000, 5e9)]}, {"memory": [(1000, 1e10), (10_000, 1e9)]})
    assert chart == {
        "name": "busbw",
        # log10(2) / 2 and log10(50) / 2 of the height from 266 up to 12
        "lines": {"frog": [(72.0, 227.8), (488.0, 50.2)]},
        "limits": {"memory": [(72.0, 12.0), (280.0, 139.0)]},
        "sizes": [(72.0, "1000 B"), (280.0, "9.8 KiB"), (488.0, "97.7 KiB")],
        "grid": [(266.0, "0.1"), (139.0, "1"), (12.0, "10")],
    }


def test_report_has_the_rows_of_the_table_and_both_charts() -> None:
    rows = (Row("all_reduce", 8000, "frog", 2e-5, 5), *RESULT.rows, Row("broadcast", 4000, "frog", 1e-5, 5))
    result = Result(4, False, rows, (*RESULT.limits, Limit("memory", 8000, 5e-6)))
    usual = {"algbw": "0.400", "busbw": "0.600", "share": "37.5%"}
    assert _rows(result, "all_reduce") == [
        {"size": "7.8 KiB", "by": "frog", "time": "20.0", **usual, "times": ""},
        {"size": "3.9 KiB", "by": "frog", "time": "10.0", **usual, "times": "40.00"},
        {"size": "3.9 KiB", "by": "gloo", "time": "400.0", "algbw": "0.010", "busbw": "0.015", "share": "37.5%",
         "times": ""},
    ]  # fmt: skip
    algorithm, bus = _charts(result, "all_reduce")
    assert (algorithm["name"], algorithm["limits"], bus["name"]) == ("algbw", {}, "busbw")
    assert [size for size, _ in algorithm["lines"]["frog"]] == [72.0, 488.0]  # sorted by size
    assert len(algorithm["lines"]["gloo"]) == 1
    assert {name: len(points) for name, points in bus["limits"].items()} == {"memory": 2, "sockets": 1}
    low, high = (power for power, _ in (algorithm["grid"][0], algorithm["grid"][-1]))
    # 0.4 GB/s between 0.01 and 1: log10(40) / 2 from below
    assert algorithm["lines"]["frog"][0][1] == pytest.approx(low + (high - low) * 0.801, abs=0.1)
    assert bus["lines"]["frog"][0][1] == pytest.approx(266 - 254 * math.log10(60) / 3, abs=0.1)


def test_missing_open_mpi_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="mpirun not found"):
        mpirun(2, ["true"])
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho HYDRA build details\n")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(UsageError, match=r"does not belong to Open MPI.*HYDRA"):
        mpirun(2, ["true"])


@pytest.mark.parametrize(
    ("says", "is_open_mpi"), [("mpirun (Open MPI) 4.1.4", True), ("prterun (OpenRTE) 5", True), ("HYDRA build", False)]
)
def test_mpirun_must_belong_to_open_mpi(
    says: str, is_open_mpi: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(shutil, "which", lambda name: str(program) if name == "mpirun" else None)
    monkeypatch.setattr("frog.measure.peers.open_mpi.ctypes.CDLL", lambda name: None)
    for uid in (0, 1000):
        monkeypatch.setattr("os.getuid", lambda uid=uid: uid)
        if is_open_mpi:
            as_root = ["--allow-run-as-root"] if uid == 0 else []
            assert mpirun(3, ["x", "y"]) == [
                str(program), *as_root, "--oversubscribe", "--bind-to", "none", "-n", "3", "x", "y"
            ]  # fmt: skip
        else:
            with pytest.raises(UsageError, match="does not belong to Open MPI"):
                mpirun(3, ["x", "y"])


def test_open_mpi_rejects_simulated_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", "bench", "--nodes", "2x1", "--against", "mpi"]) == 2
    assert "on one node" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sizes_bytes"),
    [
        ("4KiB,1MiB,8b", (4096, 1 << 20, 8)),
        ("4", (4,)),
        ("5B,1K,3kib", (5, 1024, 3072)),
        ("1M,1024MiB", (1 << 20, 1 << 30)),
        ("1048576K", (1 << 30,)),
    ],
)
def test_sizes_are_parsed(words: str, sizes_bytes: tuple[int, ...]) -> None:
    assert sizes(words) == sizes_bytes


@pytest.mark.parametrize("words", ["4TiB", "1", "3", "3B", "-4KiB", "1025MiB", "1048577K", "KiB", "4KiB,", "4KB"])
def test_invalid_sizes_are_rejected(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["collectives", "bench", "--nproc", "2", "--sizes", words])
    said = capsys.readouterr().err
    assert "sizes from 4B to 1024MiB" in said or "expected one argument" in said


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


# ---- the commands, with a world that only writes its result ---------------------------------------------------------


def test_bench_asks_for_what_the_user_named_and_prints_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Request] = []

    def run_world(nodes: object, words: list[str], options: object) -> int:
        asked.append(read_request(Path(words[1])))
        Path(words[2]).write_text(json.dumps(asdict(RESULT)))
        return 0

    monkeypatch.setattr(bench, "run_world", run_world)
    assert main(["collectives", "bench", "--nproc", "4", "--sizes", "4KiB,8B", "--rounds", "3"]) == 0
    assert capsys.readouterr().out == bench.table(RESULT) + "\n"
    path = tmp_path / "bench.html"
    assert main(["collectives", "bench", "--nproc", "4", "--json", "--report", str(path)]) == 0
    told = capsys.readouterr()
    assert Result.of(json.loads(told.out)) == RESULT
    assert (told.err, path.exists()) == (f"report: {path}\n", True)
    assert (asked[0].sizes, asked[0].rounds, asked[0].contenders[0], asked[0].steps) == ((4096, 8), 3, "frog", False)
    assert (asked[1].operations[0], asked[1].rounds) == ("all_reduce", None)


def test_failed_world_gives_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bench, tune):
        monkeypatch.setattr(module, "run_world", lambda *_: 7)
    assert main(["collectives", "bench", "--nproc", "2"]) == 7
    assert main(["collectives", "tune", "--nproc", "2"]) == 7
    assert main(["collectives", "bench", "--nproc", "1"]) == 2
    assert main(["collectives", "tune", "--nproc", "3"]) == 2


def test_tune_fits_a_line_to_the_times_and_shows_from_where_a_ring_is_faster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alpha_s, beta_s, gamma_s = 5e-5, 1e-9, 2e-10

    def run_world(nodes: object, words: list[str], options: object) -> int:
        request = read_request(Path(words[1]))
        assert (request.operations, request.contenders, request.steps) == (("all_reduce",), ("tcp",), True)
        assert request.sizes == tuple(64 * 4**power for power in range(8))
        rows = [Row("all_reduce", size, "tcp", alpha_s + size * (beta_s + gamma_s), 5) for size in request.sizes]
        Path(words[2]).write_text(json.dumps({"rows": [asdict(row) for row in rows]}))
        return 0

    saved: list[Costs] = []
    monkeypatch.setattr(tune, "run_world", run_world)
    monkeypatch.setattr(tune, "add_s_per_byte", lambda: gamma_s)
    monkeypatch.setattr(tune, "save_costs", lambda costs: saved.append(costs) or "there")
    assert main(["collectives", "tune", "--nproc", "2"]) == 0
    (costs,) = saved
    assert (costs.alpha_s, costs.beta_s_per_byte, costs.gamma_s_per_byte) == pytest.approx((alpha_s, beta_s, gamma_s))
    said = capsys.readouterr().out.splitlines()
    measured = [line.split() for line in said if line.endswith(" us")]
    assert len(measured) == 8
    assert all(line[-4] == line[-2] for line in measured)
    assert "alpha 50.0 us, beta for 1.00 GB/s, gamma for 5.00 GB/s" in said
    for num_ranks in (2, 4, 8):
        least = next(size for size in range(1024, 1 << 26, 1024) if costs.takes_ring(size, num_ranks))
        assert f"  {num_ranks} ranks: the ring from {format_bytes(least)} on" in said
    assert said[-1] == "saved in there"


def test_time_of_an_addition_is_per_byte() -> None:
    assert 1e-12 < tune.add_s_per_byte(1 << 16) < 1e-6


# ---- Open MPI --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, None),
        (3, "mpirun ended with exit code 3; its last output:\nline 10\n"),
        (None, "mpirun did not end within 3600 s; its last output:\nline 10\n"),
    ],
)
def test_open_mpi_starts_the_measured_world(
    code: int | None,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    waited: list[float] = []

    class Mpirun:
        def __init__(self, command: list[str], scratch: Path, env: dict[str, str]) -> None:
            started.append((command, env))
            request = read_request(Path(command[-2]))
            assert request.contenders == ("frog", "mpi")
            Path(command[-1]).write_text(json.dumps(asdict(RESULT)))
            self.output = "\n".join(f"line {number}" for number in range(30))

        def __enter__(self) -> Mpirun:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def wait(self, seconds: float) -> int | None:
            waited.append(seconds)
            return code

    monkeypatch.setattr(bench, "mpirun", lambda num_ranks, command: ["mpirun", str(num_ranks), *command])
    monkeypatch.setattr(bench, "Program", Mpirun)
    monkeypatch.setattr(bench, "run_world", lambda *_: pytest.fail("torchrun started it"))
    words = ["collectives", "bench", "--nproc", "4", "--against", "mpi"]
    assert main(words) == (0 if said is None else LaunchError.exit_code)
    told = capsys.readouterr()
    assert (told.out == bench.table(RESULT) + "\n") == (said is None)
    assert (said or "") in told.err
    ((command, env),) = started
    assert command[:-2] == ["mpirun", "4", sys.executable, "-P", "-m", "frog.measure.peers.peers_rank"]
    assert (env, waited) == ({"OMP_NUM_THREADS": "1"}, [3600.0])


@pytest.mark.parametrize(
    ("words", "nodes", "network"),
    [
        (["--nproc", "3"], Nodes(1, 1, 3), False),
        (["--nodes", "2x2", "--network", "rate=10mbit"], Nodes(2, 2, 2), True),
    ],
)
@pytest.mark.parametrize("command", ["bench", "tune"])
def test_measured_world_has_one_thread_and_no_second_attempt(
    command: str, words: list[str], nodes: Nodes, network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds: list[tuple[Nodes, Options]] = []

    def run_world(nodes: Nodes, words: list[str], options: Options) -> int:
        worlds.append((nodes, options))
        return 7

    monkeypatch.setattr(bench, "run_world", run_world)
    monkeypatch.setattr(tune, "run_world", run_world)
    if command == "tune":
        words, nodes = (
            [word.replace("2x2", "2x1").replace("3", "2") for word in words],
            replace(nodes, ranks=2 // nodes.most),
        )
    assert main(["collectives", command, *words]) == 7
    ((found, options),) = worlds
    assert (found, options.network is not None) == (nodes, network)
    assert (options.threads, options.restarts, options.replace) == (1, 0, 0)
    assert (options.deadline_s, options.idle_s) == (60.0, 60.0)


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ([], Request(("all_reduce",), (4096, 1 << 18, 1 << 22, 1 << 26), ("frog",))),
        (
            ["--against", "gloo,tcp", "--operations", "broadcast,all_to_all", "--sizes", "8", "--rounds", "2"],
            Request(("broadcast", "all_to_all"), (8,), ("frog", "gloo", "tcp"), 2),
        ),
    ],
)
def test_measurement_is_that_of_the_options(
    words: list[str], request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []
    monkeypatch.setattr(bench, "run_world", lambda _, words, options: asked.append(read_request(Path(words[1]))) or 7)
    assert main(["collectives", "bench", "--nproc", "2", *words]) == 7
    assert asked == [request_]


@pytest.mark.parametrize(
    "words", [["--against", "frog"], ["--against", "nccl"], ["--operations", "scan"], ["--nproc", "2", "--nodes", "2"]]
)
def test_unknown_contender_or_operation_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["collectives", "bench", *words])
    assert "is not one of" in capsys.readouterr().err or "--nodes" in words
