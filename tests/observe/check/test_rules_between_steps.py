"""Rules on what happens between steps: splits, streams, random states, waits, clipping, weights and states put in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from check_records import LINE, step, table, write

from frog.observe.check.answers import RULES
from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.rank_records import read_records

Lines = list[dict[str, Any]]
RULE = {rule.name: rule for rule in RULES}


def at(line: int) -> list[Any]:
    return ["/home/one/train.py", line, "main"]


def look(folder: Path, name: str, *ranks: Lines) -> Any:
    """Return what breaks a rule; None if nothing does, or if it cannot be checked."""
    for rank, lines in enumerate(ranks):
        write(folder, rank, lines)
    try:
        return RULE[name].look(Comparison(read_records(folder)))
    except NotObservable:
        return None


def check(found: Any, expected: Any) -> None:
    """Compare with None, or with how sure, the line and words of the finding."""
    assert (found is None) == (expected is None), found
    if expected is not None:
        assert (found.sure, found.line and found.line.line) == expected[:2]
        assert [word for word in expected[2:] if word not in found.finding] == [], found.finding


# ---- samples ---------------------------------------------------------------------------------------------------------


def epoch(rows: list[list[int]], **changes: Any) -> Lines:
    """Return a DataLoader's iteration with a step after each batch."""
    usual = {"loader": 0, "iteration": 0, "line": at(6), "made": at(4), "samples": 32, "size": 4}
    lines: Lines = [table(), {"kind": "loader", **usual, **changes}]
    for number, each in enumerate(rows):
        lines.append({"kind": "batch", "step": number, "loader": 0, "iteration": 0, "batch": number, "rows": each})
        lines.append(step(number + 1))
    return lines


def batches(*starts: int) -> list[list[int]]:
    return [list(range(start, start + 4)) for start in starts]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (batches(0, 4, 8, 12), batches(16, 20, 24, 28), None),
        (batches(0, 4, 8, 12), batches(4, 8, 12, 28), ("possible", 4, "12 samples in common")),
        (batches(0, 4, 8, 12, 16), batches(0, 4, 8, 12, 28), ("likely", 4, "16 samples in common")),
        (batches(0, 4, 8, 12), batches(12, 20, 24, 28), None),
        ([*batches(0, 4, 8), [8, 9, 10, 8]], batches(0, 4, 8, 12), None),  # the data have samples several times
    ],
)
def test_ranks_divide_one_data_set(tmp_path: Path, ours: Any, theirs: Any, expected: Any) -> None:
    own = [epoch(rows, distributed=True) for rows in (ours, theirs)]
    check(look(tmp_path, "samples", *own), expected)


def holding_out(trained: list[list[int]], held_out: list[int], later: Lines) -> Lines:
    """Return an epoch of three steps, a second DataLoader's two batches, and what comes later."""
    batch = {"kind": "batch", "step": 3, "loader": 1, "iteration": 0}
    return [
        *epoch(trained),
        {"kind": "loader", "loader": 1, "iteration": 0, "line": at(11), "made": at(9)},
        *({**batch, "batch": place, "rows": held_out[2 * place : 2 * place + 2]} for place in (0, 1)),
        *later,
    ]


END: Lines = [{"kind": "end", "steps": 3}]
FORWARD = {"module": 0, "training": False, "grad": False, "line": at(12)}


@pytest.mark.parametrize(
    ("held_out", "theirs", "later", "expected"),
    [
        ([24, 25, 26, 27], [28, 29, 30, 31], END, None),
        ([12, 24, 25, 26], [0, 1, 30, 31], END, None),  # too few
        ([12, 13, 24, 25], [0, 1, 30, 31], END, ("possible", 9, "evaluates on 4 samples that the other trains on")),
        ([12, 13, 14, 15], [0, 1, 2, 3], END, ("likely", 9, "evaluates on 8 samples")),
        ([12, 13, 14, 15], [0, 1, 2, 14], END, None),  # one is its own: the data of training are evaluated too
        ([12, 13, 14, 15], [0, 1, 2, 3], [step(4, forwards=[FORWARD])], ("likely", 9)),
        ([12, 13, 14, 15], [0, 1, 2, 3], [step(4, forwards=[{**FORWARD, "grad": True}])], None),  # shards that rotate
        ([12, 13, 14, 15], [0, 1, 2, 3], [{**END[0], "backwards": 1}], None),
    ],
)
def test_ranks_hold_out_the_same_samples(
    tmp_path: Path, held_out: list[int], theirs: list[int], later: Lines, expected: Any
) -> None:
    own = holding_out(batches(0, 4, 8), held_out, later), holding_out(batches(12, 16, 20), theirs, later)
    check(look(tmp_path, "samples", *own), expected)


@pytest.mark.parametrize(
    ("rows", "changes", "expected"),
    [
        (batches(0, 4, 8), {}, None),
        ([*batches(0, 0, 4, 4)], {}, ("likely", 4, "each of 8 samples", "comes 2 times")),
        ([*batches(0, 0, 4)], {}, None),
        ([*batches(0, 0, 4, 4)], {"workers": 3}, None),
        ([*batches(0, 0, 4, 4)], {"sampler": "RandomSampler"}, None),
    ],
)
def test_workers_divide_a_stream(tmp_path: Path, rows: Any, changes: Any, expected: Any) -> None:
    settings = {"workers": 2, "sampler": "_InfiniteConstantSampler", **changes}
    check(look(tmp_path, "samples", epoch(rows, **settings), epoch(batches(40, 44, 48))), expected)


# ---- random states ---------------------------------------------------------------------------------------------------


def drawing(states: list[int], **calls: Any) -> Lines:
    """Return steps whose forwards begin with these random states; calls: of step 3."""
    forward = {"module": 0, "training": True, "grad": True, "line": at(8), "draws": True}
    steps = [
        step(number, forwards=[{**forward, "random": state}], **(calls if number == 3 else {}))
        for number, state in enumerate(states, 1)
    ]
    return [table(), *steps]


RESTORED = [{"call": "random_set", "line": at(5)}]


@pytest.mark.parametrize(
    ("theirs", "calls", "expected"),
    [
        ([8, 9, 3, 4, 5, 6], [], ("possible", 8, "since step 3")),
        ([8, 9, 3, 4, 5, 6], RESTORED, ("likely", 5, "since step 3")),
        ([8, 9, 3, 4, 15, 16], [], None),
        ([8, 2, 3, 4, 5, 16], [], None),
        ([11, 12, 13, 14, 5, 6], [], None),
    ],
)
def test_random_states_that_become_equal(tmp_path: Path, theirs: list[int], calls: Lines, expected: Any) -> None:
    check(look(tmp_path, "randomness", drawing([1, 2, 3, 4, 5, 6], calls=calls), drawing(theirs)), expected)


def test_layer_that_drops_others_when_it_is_computed_again(tmp_path: Path) -> None:
    call = {"call": "redrawn", "module": "block.2 (Dropout)", "line": at(7)}
    check(look(tmp_path, "randomness", [table(), step(1, calls=[call])]), ("likely", 7, "block.2 (Dropout)"))


# ---- collectives and clipping ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("likely", 9, "does not wait for the all_reduce of 96 elements")),
        ({"waited": True}, None),
        ({"waited": None}, None),
        ({"elements": 2}, None),
    ],
)
def test_reduction_that_nothing_waits_for(tmp_path: Path, changes: Any, expected: Any) -> None:
    call = {"call": "all_reduce", "line": at(9), "elements": 96, "waited": False, **changes}
    steps = [step(number, calls=[call]) for number in (1, 2)]
    check(look(tmp_path, "collectives", [table(), *steps], [table(), *steps]), expected)


@pytest.mark.parametrize(
    ("norm", "changes", "expected"),
    [
        (2.0, {}, ("likely", 9, "have the norm 2, although they were clipped to 0.5")),
        (0.5, {}, None),
        (2.0, {"covers": [1]}, None),
        (2.0, {"limit": None}, None),
    ],
)
def test_gradients_that_are_larger_than_their_limit(tmp_path: Path, norm: float, changes: Any, expected: Any) -> None:
    call = {"call": "clip", "line": at(9), "norm": 3.0, "limit": 0.5, "covers": [0], **changes}
    steps = [step(number, gradients=[[7 * number, norm]], calls=[call]) for number in (1, 2)]
    check(look(tmp_path, "clipping", [table(), *steps], [table(), *steps]), expected)


# ---- weights and states that are put in ------------------------------------------------------------------------------

LOOKS = {"module": 0, "training": False, "grad": False, "line": at(12)}
PUT_IN: dict[str, Any] = {"calls": [{"call": "written", "line": at(11)}], "forwards": [LOOKS]}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"before": [77], **PUT_IN}, ("possible", 11, "before step 4", "so 1 times, while 2 other")),
        ({"before": [1003], **PUT_IN}, None),
        ({"before": [77], "calls": PUT_IN["calls"]}, None),  # no evaluation: weights that are constrained
        ({"before": [77], "forwards": [LOOKS]}, None),
    ],
)
def test_weights_of_an_evaluation_stay(tmp_path: Path, last: Any, expected: Any) -> None:
    steps = [*(step(number, before=[999 + number]) for number in (1, 2, 3)), step(4, **last)]
    check(look(tmp_path, "weights-between", [table(), *steps], [table(), *steps]), expected)


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        ([31, 32, 33], None),
        ([33, 32, 31], ("certain", 15, "gives a the moments of c", "for 2 parameters")),
        ([1, 2, 3], None),
        ([None, 32, 33], None),
    ],
)
def test_moments_are_those_of_the_same_parameter(tmp_path: Path, loaded: list[int | None], expected: Any) -> None:
    usual = {"module": 0, "shape": [4], "dtype": "float32", "trained": True}
    names = [{"names": [name], **usual} for name in ("a", "b", "c")]
    held = {"kind": "parameters", "optimizer": 0, "class": "Adam", "made": LINE, "parameters": names}
    calls = [
        {"call": "state_of_optimizer", "optimizer": 0, "moments": [31, 32, 33]},
        {"call": "load_optimizer", "optimizer": 1, "moments": loaded, "line": at(15)},
    ]
    again = {**held, "optimizer": 1}
    lines = [held, step(1), again, {**step(1), "optimizer": 1, "number": 2, "calls": calls}]
    check(look(tmp_path, "restored", lines), expected)


@pytest.mark.parametrize(("lowered", "expected"), [([], None), (["inv_freq"], ("possible", 8, "buffers inv_freq"))])
def test_buffers_in_half_precision_beside_weights_in_float32(tmp_path: Path, lowered: list[str], expected: Any) -> None:
    module = {"kind": "module", "module": 0, "class": "Net", "lowered": lowered}
    check(look(tmp_path, "state-type", [module, *drawing([1, 2])]), expected)


def test_rate_of_a_restored_optimizer_begins_again(tmp_path: Path) -> None:
    call = {"call": "load_optimizer", "line": at(15), "optimizer": 0, "rates": [0.02], "rates_before": [0.1]}
    held = {**table(), "schedule": at(16)}
    check(look(tmp_path, "restored", [held, step(1, calls=[call])]), ("likely", 16, "of 0.02", "has 0.1"))
    loaded = [call, {"call": "load_schedule", "line": at(17)}]
    check(look(tmp_path, "restored", [held, step(1, calls=loaded)]), None)
    check(look(tmp_path, "restored", [held, step(1, calls=[call], lr=[0.02])]), None)


def test_file_that_another_thread_writes_while_training_goes_on(tmp_path: Path) -> None:
    call = {"call": "save", "live": True, "line": at(4), "path": "/tmp/model.pt"}
    check(look(tmp_path, "saved", [table(), step(1), step(2, calls=[call])]), ("likely", 4, "/tmp/model.pt"))
    end = {"kind": "end", "steps": 2, "calls": [call]}
    check(look(tmp_path, "saved", [table(), step(1), step(2), end]), None)


def test_positions_that_a_stage_gets_are_no_samples(tmp_path: Path) -> None:
    mean = [["NllLossBackward0", 1, 8.0, None]]
    passes = [{"line": at(8), "graph": mean, "loss": each, "adds": each > 1, "bits": {"0": [7]}} for each in (1.0, 2.0)]
    stage = {"module": 0, "training": True, "grad": True, "line": at(7), "rows": [1, 2]}
    changes = {"forwards": [stage, stage], "backwards": passes, "gradients": [[7, 2.0]]}
    steps = [step(number, **changes, messages=True) for number in (1, 2)]
    check(look(tmp_path / "stage", "accumulation", [table(), *steps]), ("likely", 8, "2 micro-batches"))
    steps = [step(number, **changes) for number in (1, 2)]
    check(look(tmp_path / "losses", "accumulation", [table(), *steps]), None)


def test_gradients_that_came_and_are_gone_name_the_backward_pass(tmp_path: Path) -> None:
    came = {"line": at(8), "graph": [], "loss": 1.0, "brought": {"0": {"0": [1.0, 2.0, 3.0, 4.0]}}}
    steps = [step(number, gradients=[None], backwards=[came]) for number in (1, 2, 3)]
    check(look(tmp_path, "unused", [table(), *steps]), ("likely", 8, "the backward pass at train.py:8 (main) brought"))


# ---- weights of other ranks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "used", "expected"),
    [
        (("first", "second"), 1001, None),  # the owner sends it
        (("first", "second"), 7, ("likely", 8, "other weights of second on rank 0")),
        (("second", "second"), 7, None),  # a shard of the same parameter: the forward gathers it in another type
    ],
)
def test_forward_uses_what_the_owner_has_made(tmp_path: Path, names: Any, used: int, expected: Any) -> None:
    forward = {"module": 0, "training": True, "grad": True, "line": at(8)}
    steps = [
        step(number, forwards=[{**forward, "others": {"second": bits}}]) for number, bits in ((1, 1000), (2, used))
    ]
    ranks = [[table(names=[name], ddp=None), *steps] for name in names]
    check(look(tmp_path, "weights-forward", *ranks), expected)
