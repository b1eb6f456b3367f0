"""The judges are functions of observations: these tests pass them observations, and start no process."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wrong_peers import EXAMPLES

from frog.measure.peers.buffers import Array, Unreadable, read_buffer, write_buffer, write_calls
from frog.measure.peers.calls import (
    Call,
    error_bound,
    expected,
    make_inputs,
    operation_calls,
    result_calls,
    result_count,
)
from frog.measure.peers.ends import has_no_operation, judge_ends
from frog.measure.peers.findings import _MEANINGS, Finding
from frog.measure.peers.losses import judge_loss, survivors
from frog.measure.peers.observed import Breach, Fault, Observed, Pair, Plan, RankEnd
from frog.measure.peers.session import is_late
from frog.measure.peers.shape import (
    busiest,
    data_links,
    judge_connections,
    judge_shape,
    ring_bytes,
    ring_order,
    shape_of,
)
from frog.measure.peers.values import judge_values

DONE = RankEnd(0, 1.0)
MEBI = 1 << 20


def seen(world: int, *calls: Call, fault: Fault | None = None) -> Observed:
    """Return a session without problems."""
    rng = np.random.default_rng(1)
    inputs = [make_inputs(call, world, rng) for call in calls]
    results: list[list[Array | Unreadable]] = [
        [expected(call, inputs[n], rank).astype(call.dtype) for rank in range(world)] for n, call in enumerate(calls)
    ]
    plan = Plan("a session", world, calls, fault=fault, timeout_s=2.0)
    return Observed(plan, inputs, results, [DONE] * world, {}, {}, 0.1)


def id_of(finding: Finding | None) -> str | None:
    return None if finding is None else finding.id


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_correct_results_pass_and_each_wrong_element_is_found(world: int) -> None:
    others = [call for name in ("broadcast", "all_gather", "reduce_scatter") for call in operation_calls(name, world)]
    for call in (*result_calls(world), *others):
        right = seen(world, call)
        assert judge_values(right) is None, call
        for rank, result in enumerate(right.results[0]):
            assert isinstance(result, np.ndarray)
            if result.size:
                result[-1] = result[-1] + 1 if call.values != "random" else result[-1] * 1.01 + 1e-3
                assert judge_values(right) is not None, (call, rank)
                result[-1] = expected(call, right.inputs[0], rank).astype(call.dtype)[-1]


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda inputs, right: inputs[0] + inputs[1], "neighbours-only"),
        (lambda inputs, right: inputs[2], "some-ranks-only"),
        (lambda inputs, right: inputs[0], "not-reduced"),
        (lambda inputs, right: right / 4, "averaged"),
        (lambda inputs, right: right * 2, "wrong-sum"),
        (lambda inputs, right: np.where(np.arange(right.size) < right.size - 1, right, 7), "remainder"),
        (lambda inputs, right: np.full_like(right, np.nan), "wrong-sum"),
    ],
)
def test_wrong_sum_is_identified(change: Callable[[list[Array], Array], Array], finding: str) -> None:
    session = seen(4, Call("all_reduce", "float32", 1001))
    session.results[0][0] = change(session.inputs[0], session.results[0][0]).astype("float32")  # type: ignore[arg-type]
    assert id_of(judge_values(session)) == finding


def test_difference_of_one_bit_between_ranks_is_found() -> None:
    session = seen(3, Call("all_reduce", "float32", 50, "random"))
    last = session.results[0][2]
    assert isinstance(last, np.ndarray)
    last[49] = np.nextafter(last[49], np.float32(0))
    finding = judge_values(session)
    assert finding is not None
    assert finding.id == "ranks-differ"
    assert "rank 0 and rank 2 differ in 1 of 50 elements" in finding.observed


def test_modified_input_is_reported() -> None:
    session = replace(seen(2, Call("all_reduce", "int32", 4)), changed=[(0, 1)])
    assert id_of(judge_values(session)) == "input-changed"


@pytest.mark.parametrize(
    ("end", "finding"),
    [
        (RankEnd(1, 1.0, None, "IndexError: 7"), "crashed"),
        (RankEnd(-11, 1.0), "crashed"),
        (RankEnd(1, 1.0, 0, "lost 0"), "lost-nobody"),
        (RankEnd(3, 1.0), "no-operation"),
    ],
)
def test_first_independent_failure_is_named(end: RankEnd, finding: str) -> None:
    session = replace(seen(3), ends=[RankEnd(1, 0.5, 1, "lost 1"), end, DONE])
    found = judge_ends(session)
    assert found is not None
    assert (found.id, "rank 1" in found.observed or end.lost == 0) == (finding, True)


def test_rank_that_waits_for_one_that_is_done_is_not_impatient() -> None:
    session = replace(seen(2), ends=[RankEnd(1, 1.0, 1, "lost 1"), DONE])
    found = judge_ends(session)
    assert found is not None
    assert found.id == "sizes-disagree"
    assert found.observed.endswith("its last output: lost 1. Rank 1 had ended with exit code 0.")
    assert id_of(judge_ends(replace(session, ends=[RankEnd(1, 0.9, 1, "lost 1"), DONE]))) == "lost-nobody"


def test_header_that_names_more_elements_than_the_file_has_is_reported(tmp_path: Path) -> None:
    write_buffer(tmp_path / "right", np.zeros(5, "float32"))
    whole = (tmp_path / "right").read_bytes()
    (tmp_path / "short").write_bytes(whole[:16] + b"\xff" * 4 + whole[24:])  # a header of 20 bytes
    found = read_buffer(tmp_path / "short", "float32", 5)
    assert isinstance(found, Unreadable)
    assert found.id == "not-a-buffer"
    assert found.observed.endswith(f"but {len(whole) - 28} bytes follow")


def test_exceeded_limits_and_left_over_processes_are_reported() -> None:
    session = seen(2)
    assert judge_ends(session) is None
    assert id_of(judge_ends(replace(session, breach=Breach("too-much-memory", "much")))) == "too-much-memory"
    assert id_of(judge_ends(replace(session, left=[1]))) == "left-over"


def _links(*pairs: Pair, num_bytes: int) -> dict[Pair, int]:
    return dict.fromkeys(pairs, num_bytes)


RING = ((0, 1), (1, 2), (2, 3), (3, 0))
BACK = tuple((j, i) for i, j in RING)
STAR = tuple(pair for rank in (0, 1, 3) for pair in ((2, rank), (rank, 2)))
MESH = tuple((i, j) for i in range(4) for j in range(4) if i != j)


@pytest.mark.parametrize(
    ("sent", "kind", "finding"),
    [
        (_links(*RING, num_bytes=MEBI * 3 // 2), "ring", None),
        (_links((0, 2), (2, 1), (1, 3), (3, 0), num_bytes=MEBI * 3 // 2), "ring", None),
        (_links(*RING, num_bytes=MEBI * 3), "ring", "whole-buffers"),
        (_links(*RING, *BACK, num_bytes=MEBI * 3 // 4), "two-way-ring", None),
        (_links(*MESH, num_bytes=MEBI // 2), "mesh", None),
        (_links(*MESH, num_bytes=MEBI), "mesh", "more-bytes"),
        (_links(*STAR, num_bytes=MEBI), "star", "through-one-rank"),
        (_links(*((r, r ^ b) for r in range(4) for b in (1, 2)), num_bytes=MEBI), "doubling", "more-bytes"),
        (_links((0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), num_bytes=MEBI), "tree", "more-bytes"),
        (_links((0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (3, 1), num_bytes=2 * MEBI), "other", "more-bytes"),
    ],
)
def test_shape_is_recognized_from_bytes_per_link(sent: Mapping[Pair, int], kind: str, finding: str | None) -> None:
    session = replace(seen(4), plan=Plan("ring", 4, (Call("all_reduce", "float32", MEBI // 4),)), sent=dict(sent))
    assert shape_of(sent, 4)[0] == kind
    assert id_of(judge_shape(session)) == finding
    assert ring_bytes(4, MEBI) == MEBI * 1.5


def test_number_of_connections_is_compared_with_calls() -> None:
    session = seen(2, *(Call("all_reduce", "float32", 1) for _ in range(10)))
    assert judge_connections(replace(session, connections={(0, 1): 5})) is None
    assert id_of(judge_connections(replace(session, connections={(0, 1): 6}))) == "connection-per-call"


KILL, CUT = Fault("kill", (1, 1), 10), Fault("cut", (0, 1), 10)
GONE = RankEnd(-9, 0.1)
NONE = Unreadable("no-result", "the result file is missing")


@pytest.mark.parametrize(
    ("fault", "ends", "finding"),
    [
        (KILL, [RankEnd(1, 1, 1), GONE, RankEnd(1, 1, 0)], None),
        (KILL, [RankEnd(1, 1, 2), GONE, RankEnd(1, 1, 0)], "wrong-loss"),
        (KILL, [RankEnd(None, 9), GONE, RankEnd(1, 1, 1)], "hangs-after-loss"),
        (KILL, [RankEnd(0, 1), GONE, RankEnd(1, 1, 1)], "wrong-after-loss"),
        (KILL, [RankEnd(1, 1, None, "error"), GONE, RankEnd(1, 1, 1)], "loss-unnamed"),
        (CUT, [RankEnd(1, 1, 2), RankEnd(1, 1, 0), RankEnd(1, 1, 1)], None),
        (CUT, [RankEnd(1, 1, 2), RankEnd(1, 1, 2), RankEnd(1, 1, 1)], "wrong-loss"),
    ],
)
def test_reaction_of_survivors_is_judged(fault: Fault, ends: list[RankEnd], finding: str | None) -> None:
    session = seen(3, Call("all_reduce", "float32", 100), fault=fault)
    lost = replace(session, ends=ends, results=[[NONE] * 3], fault_at_s=0.5)
    assert id_of(judge_loss(lost)) == finding


def test_survivors_may_finish_but_not_leave_a_partial_result() -> None:
    session = seen(3, Call("all_reduce", "float32", 100), fault=KILL)
    ends = [DONE, GONE, RankEnd(1, 1, 1)]
    whole = replace(session, ends=ends, results=[[session.results[0][0], NONE, NONE]], fault_at_s=0.5)
    assert judge_loss(whole) is None
    half = replace(whole, results=[[session.results[0][0], NONE, session.inputs[0][2]]])
    assert id_of(judge_loss(half)) == "result-before-complete"


def test_incomplete_result_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    write_buffer(path, np.arange(5, dtype=np.int64))
    assert path.read_bytes() == struct.pack("<8sQQ5q", b"FROGBUF1", 4, 5, *range(5))
    assert np.array_equal(read_buffer(path, "int64", 5), np.arange(5))  # type: ignore[arg-type]
    good = path.read_bytes()
    for bad in (good[:-1], good + b"x", good[:23], b"", b"x" + good[1:], good[:8] + bytes(8) + good[16:]):
        path.write_bytes(bad)
        assert isinstance(read_buffer(path, "int64", 5), Unreadable)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: os.mkfifo(path), "found a named pipe, expected a file"),
        (lambda path: path.mkdir(), "found a folder, expected a file"),
        (lambda path: path.symlink_to("/dev/zero"), "found a device, expected a file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
)
def test_pipe_or_device_in_place_of_a_result_does_not_block(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "buffer")
    assert read_buffer(tmp_path / "buffer", "int64", 5) == Unreadable("no-result", said)


def test_every_finding_has_a_judge() -> None:
    code = "".join(path.read_text() for path in EXAMPLES.parent.glob("*.py") if path.name != "findings.py")
    limits = (EXAMPLES.parents[2] / "launch" / "resource_limits.py").read_text()
    assert [id for id in _MEANINGS if f'"{id}"' not in code + limits] == []


def test_documentation_shows_the_python_example_verbatim() -> None:
    page = (Path(__file__).parents[3] / "docs" / "measure" / "collectives.md").read_text()
    assert (EXAMPLES / "ring.py").read_text() in page


@pytest.mark.parametrize(
    ("ended", "fault_at_s", "end_s"),
    [
        ([], None, None),
        ([(0, 1.0), (0, 2.0)], None, None),
        ([(0, 1.0), (1, 5.0), (-9, 4.0)], None, 7.0),  # 3 s after the first failure
        ([(1, 0.5)], 2.0, 15.0),  # the timeout of 10 s and 3 s after a fault, for any rank
    ],
)
def test_others_have_a_little_time_after_a_failure_and_their_timeout_after_a_fault(
    ended: list[tuple[int, float]], fault_at_s: float | None, end_s: float | None
) -> None:
    late = [seconds for seconds in range(100) if is_late(seconds + 0.01, ended, fault_at_s, 10.0)]
    assert late == ([] if end_s is None else list(range(int(end_s), 100)))
    assert not is_late(end_s or 99.0, ended, fault_at_s, 10.0)


def test_traffic_may_be_a_twentieth_more_than_a_rings_and_some_greetings() -> None:
    plan = Plan("ring", 4, (Call("all_reduce", "float32", MEBI // 4),))
    allowed = int(1.05 * 1.5 * MEBI) + 4096
    for num_bytes, finding in ((allowed, None), (allowed + 2, "whole-buffers")):
        session = replace(seen(4), plan=plan, sent=_links(*RING, num_bytes=num_bytes))
        assert id_of(judge_shape(session)) == finding


# ---- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "counts"),
    [(2, [0, 1, 2, 3, 2001]), (3, [0, 1, 2, 3, 4, 3001]), (8, [0, 1, 7, 8, 9, 8001])],
)
def test_all_reduces_have_awkward_sizes_and_every_dtype(world: int, counts: list[int]) -> None:
    calls = result_calls(world)
    assert [call.count for call in calls[: len(counts)]] == counts
    assert all((call.dtype, call.values) == ("float32", "exact") for call in calls[: len(counts)])
    assert [(call.dtype, call.count, call.values) for call in calls[len(counts) :]] == [
        ("float32", 262_144, "exact"),
        ("float32", 10_007, "random"),
        ("float64", 1_003, "random"),
        ("int32", 1_001, "wide"),
        ("int64", 1_001, "wide"),
    ]
    assert all((call.operation, call.root) == ("all_reduce", 0) for call in calls)


@pytest.mark.parametrize(("operation", "root"), [("broadcast", 4), ("all_gather", 0), ("reduce_scatter", 0)])
def test_other_operations_have_empty_single_and_large_inputs(operation: str, root: int) -> None:
    assert operation_calls(operation, 5) == (
        Call(operation, "float32", 0),
        Call(operation, "float32", 1),
        Call(operation, "float32", 6),
        Call(operation, "float32", 10_007, root=root),
        Call(operation, "float32", 1_003, "random", root=root),
        Call(operation, "int64", 1_001, "wide"),
    )


@pytest.mark.parametrize(
    ("operation", "rank", "result"),
    [
        ("all_reduce", 0, [12, 15, 18, 21, 24]),
        ("broadcast", 0, [1, 2, 3, 4, 5]),
        ("all_gather", 1, [0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 11, 12, 13, 14, 15]),
        ("reduce_scatter", 0, [12]),
        ("reduce_scatter", 1, [15, 18]),
        ("reduce_scatter", 2, [21, 24]),
    ],
)
def test_right_results_match_hand_computed_ones(operation: str, rank: int, result: list[int]) -> None:
    inputs = [np.arange(5, dtype="int32") + first for first in (0, 1, 11)]
    call = Call(operation, "int32", 5, root=1)
    found = expected(call, inputs, rank)
    assert found.tolist() == result
    assert (found.dtype, result_count(call, rank, 3)) == (np.dtype("int32"), len(result))


def test_sums_of_floats_are_compared_in_float64_within_the_bound_of_any_order() -> None:
    inputs = [np.array([1, -2, 0.5, 4], "float32"), np.array([3, 2, 0.25, -1], "float32"), np.zeros(4, "float32")]
    call = Call("all_reduce", "float32", 4, "random")
    assert expected(call, inputs, 0).dtype == np.float64
    # (n - 1) eps sum |x|: two additions.
    assert error_bound(call, inputs, 0) == pytest.approx(2 * 2**-23 * np.array([4, 4, 0.75, 5]))
    scatter = Call("reduce_scatter", "float32", 4, "random")
    assert [error_bound(scatter, inputs, rank).size for rank in range(3)] == [1, 1, 2]
    assert error_bound(scatter, inputs, 2) == pytest.approx(2 * 2**-23 * np.array([0.75, 5]))


def test_inputs_are_small_integers_floats_of_many_magnitudes_or_the_full_range() -> None:
    rng = np.random.default_rng(3)
    (exact, other) = make_inputs(Call("all_reduce", "float32", 50_000), 2, rng)
    assert (exact.min(), exact.max(), exact.dtype) == (-1000, 1000, np.dtype("float32"))
    assert np.array_equal(exact, np.round(exact))
    assert not np.array_equal(exact, other)
    (random, *_) = make_inputs(Call("all_reduce", "float64", 50_000, "random"), 3, rng)
    magnitudes = np.abs(random)
    assert (random.dtype, round(float((random < 0).mean()), 1)) == (np.dtype("float64"), 0.5)
    assert 1000 < magnitudes.max() < 6000  # at most 10^3 standard deviations
    assert 0.5 < np.median(magnitudes) < 0.8  # of a standard normal number
    for dtype in ("int32", "int64"):
        whole = make_inputs(Call("all_reduce", dtype, 50_000, "wide"), 4, rng)
        most = np.iinfo(dtype).max // 4
        assert all(-most <= values.min() < -0.99 * most < 0.99 * most < values.max() < most for values in whole)


def test_payload_and_words_of_a_call() -> None:
    assert [Call("all_gather", dtype, 5).payload_bytes for dtype in ("float32", "float64", "int64")] == [20, 40, 40]
    assert str(Call("all_gather", "int32", 5, "wide")) == "all_gather of 5 int32"


# ---- the exact texts, which a user reads -----------------------------------------------------------------------------

SUMS = Call("all_reduce", "float32", 5)


def judged(call: Call, inputs: list[Array], results: list[Array | Unreadable]) -> Finding | None:
    plan = Plan("a session", len(inputs), (call,))
    return judge_values(Observed(plan, [inputs], [results], [DONE] * len(inputs), {}, {}, 0.1))


ONES = [np.full(5, float(2**rank), "float32") for rank in range(3)]
"""The sums of ranks' inputs are 1 to 7, each of other ranks."""


@pytest.mark.parametrize(
    ("result", "finding", "says"),
    [
        ([1] * 5, "not-reduced", "The result is this rank's own input."),
        ([2] * 5, "some-ranks-only", "It is the sum of only rank 1."),  # a neighbor alone, without this rank
        ([3] * 5, "neighbours-only", "It is the sum of only ranks 0 and 1."),
        ([5] * 5, "neighbours-only", "It is the sum of only ranks 0 and 2."),
        ([4] * 5, "some-ranks-only", "It is the sum of only rank 2."),
        ([6] * 5, "some-ranks-only", "It is the sum of only ranks 1 and 2."),
        ([7 / 3] * 5, "averaged", "Every element is 1/3 of the sum."),
        ([7, 7, 7, 0, 0], "remainder", "All but the last 5 % 3 = 2 are correct."),
        ([7, 7, 7, 7, 0], "remainder", "All but the last 5 % 3 = 2 are correct."),
        ([7, 7, 0, 7, 7], "wrong-sum", None),
        ([14] * 5, "wrong-sum", None),
    ],
)
def test_wrong_sum_says_what_it_equals(result: list[float], finding: str, says: str | None) -> None:
    values = np.array(result, "float32")
    right = np.full(5, 7, "float32")
    found = judged(SUMS, ONES, [values, right, right])
    wrong = [number for number in range(5) if result[number] != 7]
    assert found == Finding(
        finding,
        f"world 3, all_reduce of 5 float32: rank 0: {len(wrong)} of 5 elements are wrong; the first is element "
        f"{wrong[0]}: {values[wrong[0]]}, expected 7.0.{' ' + says if says else ''}",
    )


def test_all_elements_of_a_small_buffer_are_no_remainder() -> None:
    call = Call("all_reduce", "float32", 2)
    inputs = [each[:2] for each in ONES]
    assert id_of(judged(call, inputs, [np.zeros(2, "float32"), *[np.full(2, 7, "float32")] * 2])) == "wrong-sum"


def test_sum_of_distant_ranks_is_not_that_of_neighbours() -> None:
    inputs = [np.full(5, float(2**rank), "float32") for rank in range(5)]
    right = np.full(5, 31, "float32")
    for ranks, finding in (((4, 0), "neighbours-only"), ((0, 1), "neighbours-only"), ((0, 2), "some-ranks-only")):
        values = np.full(5, sum(2**rank for rank in ranks), "float32")
        assert id_of(judged(SUMS, inputs, [values, right, right, right, right])) == finding


def test_sum_that_passed_through_floats_is_recognized() -> None:
    call = Call("all_reduce", "int64", 1001, "wide")
    inputs = make_inputs(call, 2, np.random.default_rng(1))
    right = expected(call, inputs, 0)
    narrow = right.astype("float32").astype("int64")
    found = judged(call, inputs, [narrow, right])
    assert found is not None
    assert (found.id, found.observed.count("elements are wrong")) == ("through-floats", 1)
    assert id_of(judged(call, inputs, [right + right // 1000, right])) == "wrong-sum"  # a thousandth is too far
    exact = replace(call, values="exact")
    assert id_of(judged(exact, inputs, [narrow, right])) == "wrong-sum"


def test_difference_beyond_rounding_names_the_worst_element() -> None:
    call = Call("all_reduce", "float32", 4, "random")
    inputs = [np.array([1, 1, 1, 1], "float32"), np.array([2, 2, 2, 2], "float32")]
    # The bound is 3 x 2^-23; float32's next numbers are 2^-22 apart.
    for distance, is_found in ((1, False), (2, True), (-1, False), (-2, True)):
        values = np.array([3, 3 + distance * 2**-22, 3, 3], "float32")
        found = judged(call, inputs, [values, values])
        assert (found is not None) == is_found
    values = np.array([3, 3.5, 1, 3], "float32")
    says = "2 of 4 elements exceed the rounding error of any order of summation; element 2: 1, the exact sum is 3."
    assert judged(call, inputs, [values, values]) == Finding(
        "outside-bound", f"world 2, all_reduce of 4 float32: rank 0: {says}"
    )
    values = np.array([3, 3.5, 1, np.nan], "float32")
    found = judged(call, inputs, [values, values])
    assert found is not None
    assert "3 of 4 elements" in found.observed
    assert "element 3: nan, the exact sum is 3." in found.observed


def test_results_that_differ_between_ranks_are_shown() -> None:
    call = Call("all_reduce", "float64", 4, "random")
    inputs = [np.ones(4), np.ones(4), np.ones(4)]
    one, other = np.full(4, 3.0), np.full(4, 3.0)
    other[2:] = np.nextafter(3.0, 4.0)
    assert judged(call, inputs, [one, one, other]) == Finding(
        "ranks-differ",
        "world 3, all_reduce of 4 float64: rank 0 and rank 2 differ in 2 of 4 elements, but each is near the sum; "
        "element 2: 3 and 3.",
    )


def test_copy_is_compared_bit_for_bit() -> None:
    call = Call("broadcast", "float32", 3, root=1)
    inputs = [np.zeros(3, "float32"), np.array([1, 2, 3], "float32")]
    found = judged(call, inputs, [np.array([1, 2, 4], "float32"), inputs[1]])
    says = "1 of 3 elements are wrong; the first is element 2: 4.0, expected 3.0."
    assert found == Finding("wrong-copy", f"world 2, broadcast of 3 float32: rank 0: {says}")


def test_exact_sums_of_many_elements_are_judged_first() -> None:
    calls = (Call("all_reduce", "float32", 1), Call("all_reduce", "float32", 9, "random"), SUMS)
    session = seen(2, *calls)
    session.results[:] = [[Unreadable("no-result", f"number {n}")] * 2 for n in range(3)]
    for number in (2, 0, 1):
        found = judge_values(session)
        assert found is not None
        assert found.observed == f"world 2, {calls[number]}: rank 0: number {number}."
        session.results[number] = [
            expected(calls[number], session.inputs[number], rank).astype("float32") for rank in range(2)
        ]
    assert judge_values(session) is None
    changed = replace(session, changed=[(1, 1), (1, 0)])
    assert judge_values(changed) == Finding(
        "input-changed", f"world 2, {calls[1]}: the input file of rank 1 was modified."
    )


@pytest.mark.parametrize(
    ("ends", "changes", "observed"),
    [
        (
            [RankEnd(None, 9.0), DONE, RankEnd(None, 9.0)],
            {"breach": Breach("never-ends", "all sleep."), "sent": {(0, 1): 1000, (1, 0): 234}},
            "world 3: all sleep. Rank 0, 2 had not ended; 1,234 bytes had been sent in all.",
        ),
        (
            [RankEnd(1, 2.0), RankEnd(-9, 1.5, None, " one\n two \n\n"), DONE],
            {},
            "world 3: rank 1 was killed by SIGKILL; its last output: two",
        ),
        (
            [RankEnd(1, 1.0, 2, "lost 2"), RankEnd(7, 3.0), RankEnd(None, 9.0)],
            {},
            "world 3: rank 1 ended with exit code 7, without any output.",
        ),
        (
            [RankEnd(1, 2.0, 2, "lost 2"), DONE, RankEnd(0, 2.0)],
            {},
            "world 3: rank 0 ended with exit code 1; its last output: lost 2. Rank 2 had ended with exit code 0.",
        ),
        (
            [RankEnd(1, 2.0, 2, "lost 2"), DONE, RankEnd(0, 2.1)],
            {},
            "world 3: rank 0 ended with exit code 1; its last output: lost 2",
        ),
        ([DONE, DONE, DONE], {"left": [0, 2]}, "world 3: rank 0 and 2 ended and left a running process behind."),
        (
            [RankEnd(1, 1.0, 3, "x" * 301)] * 3,
            {},
            f"world 3: rank 0 ended with exit code 1; its last output: {'x' * 300}",
        ),
    ],
)
def test_end_of_an_undisturbed_session_is_described(
    ends: list[RankEnd], changes: dict[str, Any], observed: str
) -> None:
    found = judge_ends(replace(seen(3), ends=ends, **changes))
    assert found is not None
    assert found.observed == observed


@pytest.mark.parametrize(
    ("codes", "lacks"), [((3, 3, 3), True), ((3, 3, 0), False), ((3, 3, 1), False), ((3, 3, None), False)]
)
def test_operation_is_missing_only_if_all_ranks_say_so(codes: tuple[int | None, ...], lacks: bool) -> None:
    assert has_no_operation(replace(seen(3), ends=[RankEnd(code, 1.0) for code in codes])) == lacks


@pytest.mark.parametrize(
    ("fault", "ends", "changes", "observed"),
    [
        (
            KILL,
            [RankEnd(None, 9.26), GONE, DONE],
            {},
            "8.8 s later rank 0 had not ended; it was given PEER_TIMEOUT_S=2.",
        ),
        (KILL, [RankEnd(0, 1.0), GONE, DONE], {}, "rank 0 ended with exit code 0, and the result file is missing."),
        (
            KILL,
            [RankEnd(0, 1.0), GONE, DONE],
            {"results": [[np.zeros(100, "float32"), NONE, NONE]]},
            "rank 0 ended with exit code 0, and its result is wrong.",
        ),
        (
            KILL,
            [RankEnd(1, 1.0, 1), GONE, RankEnd(-6, 1.0)],
            {},
            "rank 2 was killed by SIGABRT, naming no rank, without any output.",
        ),
        (
            KILL,
            [RankEnd(4, 1.0, 1), GONE, DONE],
            {"results": [[Unreadable("half-written", "short"), NONE, NONE]]},
            "rank 0 ended with exit code 4 and left an invalid result file.",
        ),
        (
            KILL,
            [RankEnd(1, 1.0, 1), GONE, RankEnd(1, 1.0, 1)],
            {"left": [2]},
            "rank 2 ended and left a running process behind.",
        ),
        (
            CUT,
            [RankEnd(1, 1.0, 2), RankEnd(1, 1.0, 2), RankEnd(1, 1.0, 0)],
            {},
            "rank 0 named 2, rank 1 named 2, rank 2 named 0.",
        ),
    ],
)
def test_reaction_to_a_loss_is_described(
    fault: Fault, ends: list[RankEnd], changes: dict[str, Any], observed: str
) -> None:
    session = seen(3, Call("all_reduce", "float32", 100), fault=fault)
    lost = replace(session, **{"ends": ends, "results": [[NONE] * 3], "fault_at_s": 0.5, **changes})
    found = judge_loss(lost)
    assert found is not None
    assert found.observed == f"world 3: {fault}; {observed}"
    assert str(KILL) == "rank 1 was killed after the first 10 bytes it sent"
    assert str(CUT) == "the link between rank 0 and rank 1 fell silent after 10 bytes"


@pytest.mark.parametrize(
    ("named", "finding"),
    [((1, 2), None), ((2, 0), None), ((2, 2), "wrong-loss"), ((None, None), "loss-unnamed"), ((1, 0), None)],
)
def test_one_end_of_a_broken_link_must_name_the_other(
    named: tuple[int | None, int | None], finding: str | None
) -> None:
    session = seen(3, Call("all_reduce", "float32", 100), fault=Fault("reset", (0, 1), 10))
    ends = [RankEnd(1, 1, named[0]), RankEnd(1, 1, named[1]), RankEnd(1, 1, 1)]
    assert id_of(judge_loss(replace(session, ends=ends, results=[[NONE] * 3], fault_at_s=0.5))) == finding


def test_session_whose_fault_never_came_is_judged_as_undisturbed() -> None:
    session = seen(3, Call("all_reduce", "float32", 100), fault=KILL)
    assert judge_loss(session) is None
    crashed = replace(session, ends=[DONE, RankEnd(1, 1.0, None, "oops"), DONE])
    assert id_of(judge_loss(crashed)) == "crashed"
    assert survivors(session) == [0, 2]
    assert survivors(replace(session, plan=replace(session.plan, fault=CUT))) == [0, 1, 2]
    assert survivors(replace(session, plan=replace(session.plan, fault=None))) == [0, 1, 2]


def test_traffic_beyond_a_rings_is_described() -> None:
    plan = Plan("ring", 4, (Call("all_reduce", "float32", MEBI // 4),))
    sent = {**_links(*RING, num_bytes=3 * MEBI), (2, 3): 4 * MEBI, (3, 1): 10_000}
    found = judge_shape(replace(seen(4), plan=plan, sent=sent))
    assert found == Finding(
        "whole-buffers",
        "world 4, 1,048,576 bytes: rank 2 moves 4,194,304 in one direction; in a ring each moves 2(n-1)/n of the "
        "buffer, 1,572,864. The links form a ring, 0 → 1 → 2 → 3 → 0.",
    )
    assert data_links({(0, 1): 10_485, (1, 0): 10_486}, MEBI) == {(1, 0): 10_486}  # a hundredth
    assert busiest({(0, 2): 5, (1, 2): 6, (2, 0): 10}) == (2, 11)  # what arrives counts, too
    assert busiest({}) == (0, 0)


@pytest.mark.parametrize(
    ("links", "world", "order"),
    [
        ({(0, 1): 1, (1, 0): 1}, 2, [0, 1]),
        ({(0, 2): 1, (2, 1): 1, (1, 0): 1}, 3, [0, 2, 1]),
        ({(0, 1): 1, (1, 0): 1, (2, 3): 1, (3, 2): 1}, 4, []),  # two rings
        ({(0, 1): 1, (1, 2): 1, (2, 1): 1}, 3, []),  # it does not return to 0
        ({(0, 1): 1, (1, 2): 1, (0, 2): 1}, 3, []),
        ({(0, 1): 1, (1, 2): 1}, 3, []),
        ({(0, 1): 1, (1, 2): 1, (2, 0): 1, (0, 2): 1}, 3, []),
    ],
)
def test_ring_visits_every_rank_once(links: dict[Pair, int], world: int, order: list[int]) -> None:
    assert ring_order(links, world) == order


@pytest.mark.parametrize(
    ("pairs", "world", "words"),
    [
        (STAR, 4, "a star: everything passes through rank 2"),
        (MESH, 4, "a mesh: every rank sends to every other"),
        ((*RING, *BACK), 4, "a ring in both directions"),
        (
            tuple((r, r ^ b) for r in range(8) for b in (1, 2, 4)),
            8,
            "recursive doubling: rank r and rank r XOR 1, 2, 4 ...",
        ),
        (((0, 1), (1, 0), (1, 2), (2, 3)), 4, "a tree or a chain: 0 → 1 7, 1 → 0 7, 1 → 2 7, 2 → 3 7 bytes"),
        (
            ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2)),
            4,
            "an unknown shape: 0 → 1 7, 0 → 2 7, 1 → 2 7, 2 → 3 7, 3 → 0 7 bytes",
        ),
        ((), 4, "an unknown shape:  bytes"),
    ],
)
def test_shape_has_a_description(pairs: tuple[Pair, ...], world: int, words: str) -> None:
    assert shape_of(_links(*pairs, num_bytes=7), world)[1] == words


@pytest.mark.parametrize(("num_calls", "most"), [(1, 2), (4, 2), (5, 2), (6, 3), (11, 5)])
def test_link_may_have_two_connections_or_one_for_two_calls(num_calls: int, most: int) -> None:
    session = seen(2, *(Call("all_reduce", "float32", 1) for _ in range(num_calls)))
    assert judge_connections(session) is None
    assert judge_connections(replace(session, connections={(0, 1): most})) is None
    assert judge_connections(replace(session, connections={(0, 1): 1, (1, 0): most + 1})) == Finding(
        "connection-per-call",
        f"world 2: rank 1 connected to rank 0 {most + 1} times in a session of {num_calls} calls.",
    )


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda good: good, None),
        (lambda good: good[:-1], ("half-written", "the result file has 63 bytes; header and 5 elements need 64")),
        (lambda good: good + b"x", ("half-written", "the result file has 65 bytes; header and 5 elements need 64")),
        (lambda good: good[:23], ("half-written", "the result file has 23 bytes, less than the header's 24")),
        (lambda good: good[:24], ("half-written", "the result file has 24 bytes; header and 5 elements need 64")),
        (lambda good: b"x" + good[1:], ("not-a-buffer", "the result file starts with b'xROGBUF1', not b'FROGBUF1'")),
        (lambda good: good[:8] + bytes([3]) + good[9:], ("wrong-dtype", "the result's dtype is 3, not 4 (int64)")),
        (lambda good: good[:16] + bytes([4]) + good[17:], ("wrong-count", "the result has 4 elements, not 5")),
        (
            lambda good: good[:16] + bytes([6]) + good[17:],
            ("not-a-buffer", "the result's header names 6 elements of int64, but 40 bytes follow"),
        ),
        (
            lambda good: good[:16] + bytes([6]) + good[17:] + bytes(8),
            ("wrong-count", "the result has 6 elements, not 5"),
        ),
    ],
)
def test_wrong_result_file_is_described(
    change: Callable[[bytes], bytes], found: tuple[str, str] | None, tmp_path: Path
) -> None:
    path = tmp_path / "buffer"
    write_buffer(path, np.arange(5, dtype=np.int64))
    path.write_bytes(change(path.read_bytes()))
    result = read_buffer(path, "int64", 5)
    if found is None:
        assert isinstance(result, np.ndarray)
        assert (result.tolist(), result.dtype) == ([0, 1, 2, 3, 4], np.dtype("int64"))
    else:
        assert result == Unreadable(*found)


def test_header_numbers_every_dtype(tmp_path: Path) -> None:
    for number, dtype in enumerate(("float32", "float64", "int32", "int64"), 1):
        values = np.arange(3).astype(dtype)
        write_buffer(tmp_path / dtype, values)
        assert (tmp_path / dtype).read_bytes() == struct.pack("<8sQQ", b"FROGBUF1", number, 3) + values.tobytes()
    assert read_buffer(tmp_path / "missing", "int32", 3) == Unreadable("no-result", "the result file is missing")


def test_calls_are_written_one_to_a_line(tmp_path: Path) -> None:
    write_calls(tmp_path / "calls", [("all_reduce", 0, Path("a"), Path("b")), ("broadcast", 2, Path("c"), Path("d"))])
    assert (tmp_path / "calls").read_text() == "all_reduce\t0\ta\tb\nbroadcast\t2\tc\td\n"
