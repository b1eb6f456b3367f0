"""The numbers, the traces for a viewer and the page of a profiled run, on a folder whose times are known."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_files import event, run_json, segment

from frog.core.config import OptimizerConfig, RunConfig, StrategyConfig, TrainConfig, to_dict
from frog.core.config.model import ModelConfig
from frog.core.errors import RunError
from frog.core.files import write_json
from frog.core.runs import read_run
from frog.core.runs.folder import RunFolder
from frog.core.runs.record import FORMAT
from frog.train.profile import profile_files
from frog.train.profile.numbers import (
    EXPOSED,
    IDLE,
    KERNELS,
    OPERATORS,
    PYTHON,
    TRANSFER,
    WAITING,
    Communication,
    read_profile,
)
from frog.train.profile.page import _findings, profile_page
from frog.train.profile.profile_files import write_profile

PLAIN, RECORDED = (3, 4, 5), (7, 8, 9)
STEP_US = {3: 500, 4: 900, 5: 600, 7: 800, 8: 800, 9: 1100}
START_US = {3: 100, 4: 1100, 5: 2100, 7: 10_000, 8: 11_000, 9: 12_000}
PHASES = (("data", 0, 50), ("forward", 50, 250), ("backward", 250, 500), ("reduce", 500, 700), ("optimize", 700, 760),
          ("zero", 760, 780))  # fmt: skip
EARLIER_US = 400
"""The trace of rank 0 says 0 when the clock of the events says 400; that of rank 1 has another origin."""
ORIGIN_NS = {0: 5_000_000, 1: 7_000_000}
COLLECTIVES = {
    0: (("reduce_scatter", 300, 480, 20), ("all_reduce", 510, 690, 180), ("send", 692, 700, 8)),
    1: (("reduce_scatter", 300, 480, 20), ("all_reduce", 570, 690, 110), ("recv", 692, 700, 4)),
}
"""Operation, start, end, time blocked: rank 1 arrives 60 later at the second."""
PIDS = {0: 2**22 + 1, 1: 2**22 + 2}


def span(name: str, start: float, end: float, category: str, pid: int, **args: Any) -> dict[str, Any]:
    times = {"ts": start, "dur": end - start}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": 7, **times, "args": args}


def trace(rank: int) -> list[dict[str, Any]]:
    pid = PIDS[rank]
    float_args = {"Input type": ["float", "float"]}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "name": "flow", "pid": pid, "tid": 7, "ts": 10_000, "id": 3, "cat": "ac2g"},
        {"ph": "X", "name": "on a device", "pid": 2, "tid": 1, "ts": 10_000, "dur": 5, "cat": "other", "args": {}},
        {"ph": "i", "name": "of no process", "pid": "Spans", "tid": 0, "ts": 10_000},
    ]
    for step in RECORDED:
        at = START_US[step]
        events.append(span(f"frog::step {step}", at, at + STEP_US[step], "user_annotation", pid))
        for phase, start, end in PHASES:
            events.append(span(f"frog::{phase}", at + start, at + end, "user_annotation", pid))
        dims = {"Input Dims": [[20, 30], [30, 40]], **float_args}
        events.append(span("aten::mm", at + 100, at + 200, "cpu_op", pid, **dims))
        dims = {"Input Dims": [[40], [20, 30], [30, 40]], **float_args}
        events.append(span("aten::addmm", at + 300, at + 420, "cpu_op", pid, **dims))
        events.append(span("aten::copy_", at + 310, at + 350, "cpu_op", pid))
        events.append(span("autograd::engine", at + 430, at + 440, "cpu_op", pid))
    return events


def events_of(rank: int) -> list[dict[str, Any]]:
    mesh, place = {"pp": 1, "dp": 2, "cp": 1, "tp": 1}, {"pp": 0, "dp": rank, "cp": 0, "tp": 0}
    lines = [event("start", rank=rank, world_size=2, local_rank=rank, pid=PIDS[rank], mesh=mesh, place=place)]
    seq = 0

    def clock_ns(us: float) -> int:
        return round((us + EARLIER_US) * 1000)

    for step in (*PLAIN, *RECORDED):
        at = START_US[step]
        for phase, start, end in PHASES:
            # A span begins just before its mark in the trace; the backward pass was interrupted between the two.
            early = 9 if phase == "backward" else 2
            times = {"start_ns": clock_ns(at + start - early), "end_ns": clock_ns(at + end)}
            if phase == "data":
                times["start_ns"] = clock_ns(at)
            lines.append(event("span", step=step, phase=phase, **times))
        for op, start, end, wait in COLLECTIVES[rank]:
            times = {"start_ns": clock_ns(at + start), "end_ns": clock_ns(at + end), "wait_ns": wait * 1000}
            lines.append(event("collective", step=step, op=op, axis="dp", payload_bytes=64, seq=seq, **times))
            seq += 1
        memory_bytes = (100 + rank + (50 if step in RECORDED else 0)) << 20
        lines.append(event("step", step=step, memory_bytes=memory_bytes, end_ns=clock_ns(at + STEP_US[step])))
    sizes = {"parameters": 1 << 20, "gradients": 2 << 20, "optimizer": 3 << 20, "activations": 4 << 20}
    return [*lines, {"event": "memory", "step": 1, **sizes}]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return the folder of a run of two ranks that were profiled."""
    folder = RunFolder(tmp_path / "runs" / "pond")
    model = ModelConfig(64, 16, 32, 2, 4, 2, 64)
    train, optimizer = TrainConfig(global_batch_size=8), OptimizerConfig()
    config = to_dict(RunConfig(model=model, train=train, optimizer=optimizer, strategy=StrategyConfig(name="zero1")))
    write_json(folder.run_json, run_json(config=config, segments=[segment(world_size=2)]))
    folder.profile.mkdir(parents=True)
    for rank in (0, 1):
        path = folder.rank_events(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in events_of(rank)))
        content = {"schemaVersion": 1, "traceEvents": trace(rank), "baseTimeNanoseconds": ORIGIN_NS[rank]}
        folder.trace(rank).write_text(json.dumps(content))
        about = {"plain_steps": PLAIN, "recorded_steps": RECORDED, "axes": {"dp": [0, 1]}}
        write_json(folder.profile / f"rank_{rank}.json", {"format": FORMAT, "rank": rank, **about})
    return folder


def test_every_number_of_a_rank_matches_hand_computed_values(folder: RunFolder) -> None:
    first, second = read_profile(folder).ranks
    assert (first.rank, second.rank) == (0, 1)
    for rank in (first, second):
        assert (rank.num_steps, rank.step_us, rank.plain_us, rank.slow_us) == (3, 900, 600, 800)
        assert rank.phases == {
            "data": 50, "forward": 200, "backward": 250, "reduce": 200, "optimize": 60, "zero": 20, "other": 120,
        }  # fmt: skip
        assert rank.profiler_bytes == 50 << 20
        assert rank.memory is not None
        assert rank.memory.activations == 4 << 20
    assert (first.peak_bytes, second.peak_bytes) == (100 << 20, 101 << 20)
    # Operators compute for 100 + 120 us. Of its blocked time, rank 0 waits 60 us for rank 1, and in its message.
    assert first.parts == pytest.approx({OPERATORS: 220, TRANSFER: 140, WAITING: 68, PYTHON: 900 - 220 - 208})
    assert second.parts == pytest.approx({OPERATORS: 220, TRANSFER: 130, WAITING: 4, PYTHON: 900 - 220 - 134})
    # Rank 0's collectives take 180 + 180 us: the first one's 160 do not block. Messages do not count.
    assert first.communication == Communication(3, 368, 208, pytest.approx(160 / 360))
    assert second.communication == Communication(3, 308, 134, pytest.approx((160 + 10) / 300))


def test_traces_for_a_viewer_name_the_ranks_and_show_their_collectives(folder: RunFolder) -> None:
    write_profile(folder)
    both = json.loads(gzip.decompress((folder.profile / "trace.json.gz").read_bytes()))
    assert (both["displayTimeUnit"], both["baseTimeNanoseconds"]) == ("ms", ORIGIN_NS[0])
    parts = [json.loads(folder.trace(rank).read_text()) for rank in (0, 1)]
    assert both["traceEvents"] == parts[0]["traceEvents"] + parts[1]["traceEvents"]
    for rank, part in enumerate(parts):
        later_us = 2000 * rank
        assert (part["schemaVersion"], part["baseTimeNanoseconds"]) == (1, ORIGIN_NS[0])
        name, place, flow, device, *rest = part["traceEvents"]
        about = {"ph": "M", "pid": rank, "tid": 0}
        assert name == {
            **about, "name": "process_name", "args": {"name": f"rank {rank} (dp {rank}), pid {PIDS[rank]}"},
        }  # fmt: skip
        assert place == {**about, "name": "process_sort_index", "args": {"sort_index": rank}}
        assert (flow["pid"], flow["ts"], flow["id"]) == (rank, 10_000 + later_us, 3 + rank * 2**32)
        assert (device["pid"], device["ts"]) == (2 + 1000 * (rank + 1), 10_000 + later_us)
        steps = [one["ts"] for one in rest if one["name"].startswith("frog::step")]
        assert steps == [START_US[step] + later_us for step in RECORDED]
        shown = [one for one in rest if one["ph"] in ("b", "e")]
        assert len(shown) == 2 * 3 * 3
        begins, ends = shown[::2], shown[1::2]
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            step, (op, start, stop, wait) = RECORDED[number // 3], COLLECTIVES[rank][number % 3]
            seq = 3 * len(PLAIN) + number
            same = {"cat": "collective", "id2": {"local": hex(seq)}, "pid": rank, "tid": 0, "name": f"{op} over dp"}
            times = [one.pop("ts") - START_US[step] - later_us for one in (begin, end)]
            assert times == pytest.approx([start, stop])
            args = {"payload_bytes": 64, "seq": seq, "blocked_us": wait}
            assert (begin, end) == ({"ph": "b", **same, "args": args}, {"ph": "e", **same})


def test_large_trace_is_compressed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = json.loads(folder.trace(0).read_text())
    monkeypatch.setattr(profile_files, "_LARGE_BYTES", 10)
    write_profile(folder)
    path = folder.profile / "rank_0.trace.json.gz"
    assert not path.with_suffix("").exists()
    assert json.loads(gzip.decompress(path.read_bytes()))["schemaVersion"] == plain["schemaVersion"]
    assert [rank.num_steps for rank in read_profile(folder).ranks] == [3, 3]


def tables(page: str) -> dict[str, list[str]]:
    """Return the rows of a page's tables by the first two words of their heads, without the padding."""
    found: dict[str, list[str]] = {}
    for part in page.split("\n\n"):
        if part.startswith("|"):
            head, _, *rows = (" ".join(line.replace("|", " ").split()) for line in part.splitlines())
            found[" ".join(head.split()[:2])] = rows
    return found


def test_page_shows_the_numbers_in_milliseconds(folder: RunFolder) -> None:
    page = write_profile(folder)
    assert page == (folder.profile / "summary.md").read_text()
    assert "2 ranks: dp 2; strategy zero1 from frog, fp32; global batch 8 sequences = dp 2" in page
    assert "A step took 0.6 ms without the profiler and 0.8 ms with it (medians of 3 steps each)." in page
    assert "It raised peak memory by 50.0 MiB per rank." in page
    assert tables(page) == {
        "rank step": ["0 0.90 0.22 24% 0.14 16% 0.07 8% 0.47 52%", "1 0.90 0.22 24% 0.13 14% 0.00 0% 0.55 61%"],
        "rank data": [f"{rank} 0.05 0.20 0.25 0.20 0.06 0.02 0.12" for rank in (0, 1)],
        "rank collectives": ["0 3 0.37 0.21 23% 44%", "1 3 0.31 0.13 15% 57%"],
        "operator calls": ["mm 1 0.10 11.1%", "addmm 1 0.08 8.9%", "copy_ 1 0.04 4.4%"],
        # 2 * 20 * 30 * 40 operations in 120 and 100 us
        "product shapes": ["addmm 20x30 and 30x40 float 1 0.12 0.4", "mm 20x30 and 30x40 float 1 0.10 0.5"],
        "rank parameters": [
            f"{rank} 1.0 MiB 2.0 MiB 3.0 MiB 4.0 MiB {peak}.0 MiB" for rank, peak in ((0, 100), (1, 101))
        ],
    }


def test_page_shows_the_ten_largest_operators_and_six_products(folder: RunFolder) -> None:
    profile = read_profile(folder)
    product = next(call for call in profile.ranks[0].calls if call.name == "aten::mm")
    names = [f"aten::op{number}" for number in range(12)]
    operators = [replace(product, name=name, own=((0, 20 - i),)) for i, name in enumerate(names)]
    products = [replace(product, shapes=((n, 1), (1, 1)), own=((0, 1),), whole_us=n) for n in range(9)]
    (rank, _) = profile.ranks
    page = tables(profile_page(replace(profile, ranks=[replace(rank, calls=[*products, *operators])])))
    assert [row.split()[0] for row in page["operator calls"]] == [name.removeprefix("aten::") for name in names[:10]]
    assert [row.split()[1] for row in page["product shapes"]] == [f"{n}x1" for n in range(8, 2, -1)]


@pytest.mark.parametrize(
    ("parts", "pp", "sentences"),
    [
        ([{OPERATORS: 70, PYTHON: 30}] * 2, 1, ["operators: 70%"]),
        ([{OPERATORS: 65, PYTHON: 35}] * 2, 1, ["operators: 65%", "Much of the time is Python"]),
        ([{KERNELS: 65, IDLE: 35}] * 2, 1, ["kernels: 65%", "Much of the time is Python"]),
        ([{OPERATORS: 80, EXPOSED: 20}] * 2, 1, ["operators: 80%", "20% is communication that nothing overlaps"]),
        ([{OPERATORS: 81, EXPOSED: 19}] * 2, 1, ["operators: 81%"]),
        ([{OPERATORS: 90, WAITING: 10}] * 2, 1, ["operators: 90%", "10% is waiting for other ranks, with no rank"]),
        ([{OPERATORS: 90, WAITING: 10}] * 2, 2, ["operators: 90%", "10% is waiting for other ranks, including the pi"]),
        ([{OPERATORS: 90, WAITING: 9}] * 2, 1, ["operators: 90%"]),
        ([{OPERATORS: 80, WAITING: 20}, {OPERATORS: 93, WAITING: 7}], 1,
         ["operators: 86%", "14% is waiting for other ranks: rank 1 arrives last"]),
        ([{OPERATORS: 80, WAITING: 20}, {OPERATORS: 92, WAITING: 8}], 1,
         ["operators: 86%", "14% is waiting for other ranks, with no rank"]),
        ([{OPERATORS: 80, WAITING: 20}], 1, ["operators: 80%", "20% is waiting for other ranks, with no rank"]),
    ],
)  # fmt: skip
def test_sentences_name_the_largest_parts(
    folder: RunFolder, parts: list[dict[str, float]], pp: int, sentences: list[str]
) -> None:
    content = json.loads(folder.run_json.read_text())
    content["config"]["strategy"]["pp"] = pp
    profile = read_profile(folder)
    ranks = [replace(profile.ranks[0], rank=n, step_us=100, parts=own) for n, own in enumerate(parts)]
    folder.run_json.write_text(json.dumps(content))
    said = _findings(replace(profile, ranks=ranks, run=read_run(folder)))
    assert len(said) == len(sentences)
    assert all(part in sentence for part, sentence in zip(sentences, said, strict=True)), said


@pytest.mark.parametrize(
    "change",
    [{"plain_steps": []}, {"recorded_steps": []}, {"recorded_steps": [7, 8, 9, 99]}, {"plain_steps": [2]}, {"rank": 7},
     {"axes": {"dp": [1]}}, {"axes": {"dp": [0, 1, 2]}}, {"recorded_steps": [7, 8]}],
)  # fmt: skip
def test_trace_metadata_must_match_the_run(folder: RunFolder, change: dict[str, Any]) -> None:
    path = folder.profile / "rank_0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RunError, match="do not match this run's ranks, steps and events"):
        read_profile(folder)
