"""What a rank whose collective differs did: skipped one, called one more, or passed another size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from frog.observe.diagnose import collectives
from frog.observe.diagnose.collectives import CollectiveCall, CollectiveCalls, _as_announced, _kind


def call(op: str = "all_reduce", size: int = 8, **changes: Any) -> CollectiveCall:
    usual = {"step": 3, "phase": "reduce", "axis": "dp", "seq": 0, "ended": True, "mono_ns": 0, "file": "f"}
    return CollectiveCall(op=op, payload_bytes=size, **{**usual, **changes})


A, B, C = call(size=8), call(size=16), call("all_gather", 4)


@pytest.mark.parametrize(
    ("odd", "other", "comes_after", "expected"),
    [
        ([call(step=4)], [A], False, ("missing", "it had already reached step 4")),
        ([call(step=2)], [B], False, ("extra", "the others had already reached step 3")),
        ([call(phase="optimize")], [A], False, ("missing", "it had already reached optimize")),
        ([call(phase="forward")], [A], False, ("extra", "it was still in forward")),
        ([call(phase=None)], [A], False, ("missing", "it had already reached the end")),
        ([call(step=None, phase=None)], [A], False, ("extra", "it was still in its start")),
        ([A], [B], True, ("missing", "its call comes after that of the others in every step")),
        ([A, B], [B, C], False, ("extra", "its next call matches this call of the others")),
        ([A, C], [B, A], False, ("missing", "its call matches the next call of the others")),
        ([A, B], [B, A], False, ("extra", "its next call matches this call of the others")),
        ([A, C, B], [B, C, A], False, ("shape", "the same operation in the same place, with another size")),
        ([A], [B], False, ("shape", "the same operation in the same place, with another size")),
        ([A], [C], False, ("extra", "or it called the wrong collective")),
        ([A], [call(axis="tp")], False, ("extra", "or it called the wrong collective")),
    ],
)
def test_first_difference_tells_what_the_odd_rank_did(
    odd: list[CollectiveCall], other: list[CollectiveCall], comes_after: bool, expected: tuple[str, str]
) -> None:
    assert _kind(odd, other, 0, comes_after) == expected
    before = [call("barrier")]
    assert _kind(before + odd, before + other, 1, comes_after) == expected


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        ([], False),
        ([call(step=2)], True),
        ([call(step=2, size=16)], False),
        ([call(step=2, phase="forward")], False),
        ([call(step=2, axis="tp")], False),
        ([call(step=2, size=16), call(step=2)], False),  # there it was the second call of its phase
        ([call(step=2), call(step=3, size=16)], False),
        ([call(step=3)], False),  # the same step announces nothing
    ],
)
def test_call_is_announced_by_the_same_one_of_an_earlier_step(earlier: list[CollectiveCall], expected: bool) -> None:
    assert _as_announced([*earlier, A], len(earlier)) == expected


def test_sizes_of_an_all_to_all_do_not_count() -> None:
    assert call("all_to_all", 4).key == call("all_to_all", 8).key != call("all_to_all", 8, axis="ep").key
    assert (str(A), str(call("barrier", 0))) == ("all_reduce of 8 bytes over dp", "barrier over dp")


@pytest.mark.parametrize(
    ("phase", "step", "position"),
    [("reduce", 3, (3, 3)), ("data", None, (0, 0)), (None, 3, (3, 8)), (None, None, (0, -1)), (None, 0, (0, -1))],
)
def test_position_is_the_step_and_the_place_in_it(
    phase: str | None, step: int | None, position: tuple[int, int]
) -> None:
    assert call(phase=phase, step=step).position == position


def case(mesh: dict[str, int], ranks: int, config: Any = None, num_parameters: int = 100) -> Any:
    start = SimpleNamespace(mesh=mesh)
    attempt = SimpleNamespace(workers={0: SimpleNamespace(start=start)})
    settings = config or {}

    def setting(*keys: str, default: Any = None) -> Any:
        return settings.get(".".join(keys), default)

    def count(*keys: str) -> Any:
        return settings.get(".".join(keys))

    run = SimpleNamespace(setting=setting, count=count, file=SimpleNamespace(num_parameters=num_parameters))
    return SimpleNamespace(ranks=list(range(ranks)), attempt=attempt, run=run)


def calls(case: Any, monkeypatch: pytest.MonkeyPatch) -> CollectiveCalls:
    monkeypatch.setattr(collectives, "_calls_of", lambda case, rank: [])
    return CollectiveCalls(case)


@pytest.mark.parametrize(
    ("axis", "sets"),
    [
        ("world", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("pp", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("dp", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("tp", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("model", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("tied", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("ep", []),
    ],
)
def test_axis_divides_the_world_into_these_sets(monkeypatch: pytest.MonkeyPatch, axis: str, sets: Any) -> None:
    assert calls(case({"pp": 2, "dp": 2, "cp": 1, "tp": 2}, 8), monkeypatch).sets_of(axis) == sets


def test_only_the_ends_of_a_long_pipeline_have_the_tied_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(case({"pp": 4, "tp": 1}, 4), monkeypatch).sets_of("tied") == [[0, 3]]


@pytest.mark.parametrize(
    ("made", "is_of_the_loop"),
    [
        (call("barrier", 0), True),
        (call("broadcast", 5), True),
        (call(size=24, phase="evaluate"), True),
        (call(size=25, phase="evaluate"), False),
        (call("all_gather", 24, phase="evaluate"), False),
        (call("all_gather", 8 * 6 * 3, phase="checkpoint"), True),
        (call("all_gather", 8 * 6 + 1, phase="checkpoint"), False),
        (call("all_reduce", 8 * 6, phase="checkpoint"), False),
        (call(size=400), True),
        (call(size=400 + 4 * 5), True),  # a number of each rank, and one more
        (call(size=400 + 4 * 5 + 1), False),
        (call(size=399), False),
        (call("all_gather", 400), False),
    ],
)
def test_collectives_of_the_training_loop_are_known(
    monkeypatch: pytest.MonkeyPatch, made: CollectiveCall, is_of_the_loop: bool
) -> None:
    found = calls(case({"dp": 4}, 4, {"train.global_batch_size": 6}), monkeypatch)
    assert found._is_of_the_loop(made) == is_of_the_loop


@pytest.mark.parametrize(("reduction", "turns"), [("bucketed", (0, 1)), ("overlapped", (1, 0))])
def test_pipeline_sums_the_tied_embedding_before_the_agreed_values(
    monkeypatch: pytest.MonkeyPatch, reduction: str, turns: tuple[int, int]
) -> None:
    settings = {"model.vocab_size": 10, "model.hidden_size": 6, "strategy.name": "ddp", "strategy.reduction": reduction}
    found = calls(case({"pp": 2, "dp": 2, "cp": 2, "tp": 2}, 16, settings), monkeypatch)
    tied, agreed = call(size=4 * 60 // 2, axis="tied"), call(size=4 * 5, axis="world")
    assert (found._turn(tied), found._turn(agreed), found._turn(A)) == (*turns, -1)
    assert found._turn(call(size=4 * 60 // 2, axis="tied", phase="forward")) == -1
    flat = calls(case({"pp": 1, "dp": 2}, 2, settings), monkeypatch)
    assert flat._turn(tied) == flat._turn(agreed) == -1
