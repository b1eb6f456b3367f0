"""The parts of a profiled run's time, on hand-made traces, so that every number is known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from mutations import held_to_its_schema

from frog.core.errors import RunError
from frog.core.runs.event_schema import CollectiveEvent
from frog.core.runs.folder import RunFolder
from frog.train.profile.numbers import ALONE, EXPOSED, IDLE, KERNELS, OPERATORS, PYTHON, _blocked, _parts, read_profile
from frog.train.profile.trace import common, length, read_trace_file, understand, union, without

MAIN, GLOO = 7, 8


def event(
    name: str, start: float, end: float, category: str = "cpu_op", thread: int = MAIN, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def mark(name: str, start: float, end: float, thread: int = MAIN) -> dict[str, Any]:
    return event(name, start, end, "user_annotation", thread)


STEP = [mark("frog::step 6", 0, 100), mark("frog::forward", 0, 40), mark("frog::backward", 40, 90)]


def test_self_time_belongs_to_innermost_operator() -> None:
    calls = understand(
        [
            *STEP,
            event("aten::linear", 10, 30),
            event("aten::mm", 12, 26),
            event("aten::empty", 12, 14),
            event("autograd::engine::evaluate_function: X", 40, 80),
            event("aten::mul", 50, 60),
            event("aten::mul", 200, 300),  # after the step
            event("aten::mul", 20, 25, thread=GLOO),  # not on the training thread
        ]
    ).calls
    own = {call.name: call.self_us for call in calls}
    assert own == {
        "aten::linear": 6,
        "aten::mm": 12,
        "aten::empty": 2,
        "autograd::engine::evaluate_function: X": 30,
        "aten::mul": 10,
    }
    assert [call.name for call in calls if call.is_work] == ["aten::linear", "aten::mm", "aten::empty", "aten::mul"]


def test_communicating_operator_is_not_work() -> None:
    trace = understand(
        [
            *STEP,
            event("aten::mm", 0, 50),
            event("_c10d_functional::wait_tensor", 10, 40),
            event("c10d::allreduce_", 60, 80),
            event("aten::copy_", 65, 70),
            event("aten::mm", 80, 90),
        ]
    )
    assert {call.name: call.self_us for call in trace.calls if call.name != "aten::mm"} == {
        "_c10d_functional::wait_tensor": 30,
        "c10d::allreduce_": 20,
    }
    assert length(trace.work) == 10


def test_compiled_graph_counts_as_operator() -> None:
    trace = understand([*STEP, mark("## Call CompiledFxGraph fabc", 5, 25), event("aten::mm", 10, 20)])
    assert {call.name: call.self_us for call in trace.calls if call.is_work} == {"compiled::graph": 10, "aten::mm": 10}


def test_parts_add_up_with_native_communication() -> None:
    trace = understand(
        [
            *STEP,
            event("aten::mm", 10, 40),
            mark("gloo:all_reduce", 30, 70, GLOO),
            mark("gloo:all_reduce", 60, 120, GLOO),
        ]
    )
    assert _parts(trace, 100.0, None) == {OPERATORS: 30, EXPOSED: 60, PYTHON: 10}


def test_gpu_parts_are_kernels() -> None:
    trace = understand(
        [
            *STEP,
            event("aten::mm", 0, 5, **{"Input Dims": [[2, 3], [3, 4]]}),
            event("gemm", 10, 50, "kernel", 1007),
            event("copy", 45, 60, "gpu_memcpy", 1008),
            event("ncclDevKernel_AllReduce", 55, 80, "kernel", 1009),
        ]
    )
    assert _parts(trace, 100.0, (0.0, 0.0)) == {KERNELS: 50, ALONE: 20, IDLE: 30}


def call(start: int, end: int, wait: int, op: str = "all_reduce", axis: str = "dp") -> CollectiveEvent:
    times = {"start_ns": start * 1000, "end_ns": end * 1000, "wait_ns": wait * 1000}
    return CollectiveEvent(step=6, op=op, axis=axis, payload_bytes=4, seq=0, **times)


def test_waiting_is_separated_from_transfer() -> None:
    axes = {"dp": [0, 1]}
    reported = {
        0: {6: [call(0, 50, 50), call(60, 90, 10), call(100, 110, 10, "recv", "pp")]},
        # Rank 1 arrives 30 later at the first; both arrive at the second together, and compute until it is nearly done.
        1: {6: [call(30, 50, 20), call(60, 90, 5), call(120, 130, 4, "send", "pp")]},
    }
    assert _blocked(0, axes, reported) == (70, 30 + 0 + 10)
    assert _blocked(1, axes, reported) == (29, 0 + 0 + 4)


def test_waiting_never_exceeds_blocked_time() -> None:
    """A rank may finish before another begins, for example the source of a broadcast."""
    reported = {0: {6: [call(0, 10, 10, "broadcast")]}, 1: {6: [call(30, 40, 10, "broadcast")]}}
    assert _blocked(0, {"dp": [0, 1]}, reported) == (10, 10)


def test_ranks_with_different_collectives_are_not_compared() -> None:
    reported = {0: {6: [call(0, 50, 50)]}, 1: {6: [call(30, 50, 20), call(60, 70, 10)]}}
    assert _blocked(0, {"dp": [0, 1]}, reported) == (50, 0)


@pytest.mark.parametrize(
    ("name", "shapes", "flops"),
    [
        ("aten::mm", [[2, 3], [3, 4]], 2 * 2 * 3 * 4),
        ("aten::addmm", [[4], [2, 3], [3, 4], [], []], 2 * 2 * 3 * 4),
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], 5 * 2 * 2 * 3 * 4),
        ("mkldnn::_linear_pointwise", [[5, 2, 3], [4, 3], [], []], 5 * 2 * 2 * 3 * 4),
    ],
)
def test_product_flops_are_counted(name: str, shapes: list[list[int]], flops: float) -> None:
    (one,) = understand([*STEP, event(name, 0, 5, **{"Input Dims": shapes, "Input type": ["float"]})]).calls
    assert one.is_product
    assert one.flops == flops


def test_interval_operations_match_hand_computed_results() -> None:
    a, b = [(0.0, 10.0), (5.0, 12.0), (20.0, 30.0)], [(8.0, 22.0), (29.0, 40.0)]
    assert union(a) == [(0, 12), (20, 30)]
    assert common(a, b) == [(8, 12), (20, 22), (29, 30)]
    assert (length(a), without(a, b), without(b, a)) == (22, 15, 18)


def test_invalid_trace_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.trace.json"
    for text in ("", "[]", '{"traceEvents": 1', "{}"):
        path.write_text(text)
        with pytest.raises(RunError, match=r"not a torch\.profiler trace"):
            read_trace_file(path)
    with pytest.raises(RunError, match="contains no mark"):
        understand([event("aten::mm", 0, 5)])
    zipped = tmp_path / "rank_1.trace.json.gz"
    zipped.write_bytes(gzip.compress(json.dumps({"traceEvents": STEP, "baseTimeNanoseconds": 5}).encode()))
    assert read_trace_file(zipped).events == STEP
    assert read_trace_file(zipped).base_ns == 5


def test_traces_with_wrong_values_are_rejected(tmp_path: Path) -> None:
    """An unreadable event is rejected, a meaningless one is skipped."""
    call = event("aten::mm", 10, 30) | {"args": {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float"]}}
    plain, zipped = tmp_path / "rank_0.trace.json", tmp_path / "rank_1.trace.json.gz"
    plain.write_text(json.dumps({"traceEvents": [STEP[0], call], "baseTimeNanoseconds": 1790857026000000000}))

    def read() -> None:
        file = read_trace_file(plain)
        try:
            trace = understand(file.events)
        except RunError:  # no step is marked in it
            return
        assert sum(call.flops for call in trace.calls if call.is_product) >= 0
        assert file.base_ns >= 0

    held_to_its_schema(plain, read)
    zipped.write_bytes(gzip.compress(plain.read_bytes())[:-9])
    with pytest.raises(RunError, match="is truncated"):
        read_trace_file(zipped)


def test_decompression_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frog.train.profile.trace._MOST_BYTES", 1 << 20)
    path = tmp_path / "rank_0.trace.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 24)))
    with pytest.raises(RunError, match="larger than 1048576 bytes"):
        read_trace_file(path)


def test_dangling_link_is_not_a_trace(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.profile.mkdir()
    (folder.profile / "rank_0.json").symlink_to("nowhere")
    with pytest.raises(RunError, match="contains no traces"):
        read_profile(folder)
