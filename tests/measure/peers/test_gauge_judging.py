"""The judges are functions of observations: these tests pass them observations, and start no process."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wrong_peers import EXAMPLES

from frog.measure.peers.buffers import Array, Unreadable, read_buffer, write_buffer
from frog.measure.peers.calls import Call, expected, make_inputs, operation_calls, result_calls
from frog.measure.peers.ends import judge_ends
from frog.measure.peers.findings import _MEANINGS, Finding
from frog.measure.peers.losses import judge_loss
from frog.measure.peers.observed import Breach, Fault, Observed, Pair, Plan, RankEnd
from frog.measure.peers.session import is_late
from frog.measure.peers.shape import judge_connections, judge_shape, ring_bytes, shape_of
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
