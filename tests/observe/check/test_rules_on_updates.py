"""Rules on what an optimizer gets and keeps: zero gradients, rates of zero, scaled gradients, moments, loss scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from check_records import step
from observe.check.test_rules_on_records import TWO, W, at, backward, called, check, forward, held, moved

Lines = list[dict[str, Any]]

# ---- parameters ------------------------------------------------------------------------------------------------------

ZERO = [moved(number, (1.0, number, number + 1), (0.0, 5, 5)) for number in (1, 2, 3)]
EMPTY = [{**each, "weights": [[number, 1.0], [5, 0.0]]} for number, each in enumerate(ZERO, 1)]
REENTRANT = called("checkpoint_without_gradient", line=at(6))
WITHOUT = [moved(number, (1.0, number, number + 1), (None, 5, 5)) for number in (1, 2, 3)]
GROUPS = held({"group": 0}, {"group": 1})


def rated(*rates: list[float]) -> Lines:
    """Return steps of two groups, of which the second changes nothing."""
    return [moved(number, (1.0, number, number + 1), (1.0, 5, 5)) | {"lr": lr} for number, lr in enumerate(rates, 1)]


@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        ("unused", [TWO, *ZERO], ("possible", 1, (0,), 3, "the gradient of w1 is zero in all of 3 steps")),
        ("unused", [TWO, *EMPTY], ("likely", 1, (0,), 3, "w1 is zero in all of 3 steps, and so is w1 itself")),
        ("unused", [held({}, {"shape": [4]}), *EMPTY], ("possible", 1, (0,), 3)),  # an expert's bias that is not used
        ("unused", [TWO, *ZERO[:2], moved(3, (1.0, 3, 4), (0.1, 5, 5))], None),
        ("unused", [TWO, {**WITHOUT[0], "calls": [REENTRANT]}, *WITHOUT[1:]],
         ("likely", 1, (0,), 6, "w1 got no gradient in any of 3 steps", "the checkpoint at train.py:6")),
        ("unused", [TWO, {**ZERO[0], "calls": [REENTRANT]}, moved(2, (1.0, 2, 3), (1.0, 5, 6)), ZERO[2]], None),
        ("changes", [GROUPS, *rated([0.1, 0.0], [0.1, 0.0], [0.1, 0.0])],
         ("possible", 1, (0,), 7, "the learning rate of w1 is 0 in all of 3 steps, although it has gradients")),
        ("changes", [GROUPS, *rated([0.1, 0.0], [0.1, 0.0], [0.1, 0.1])], None),
        ("changes", [GROUPS, *rated([0.1, 0.1], [0.1, 0.1])], ("likely", 1, (0,), 7, "w1 does not change in 2 steps")),
        ("changes", [GROUPS, *rated([0.0, 0.0], [0.1, 0.0], [0.1, 0.0])], None),  # a schedule may warm it up later
    ],
)  # fmt: skip
def test_parameter_that_gets_nothing(tmp_path: Path, name: str, lines: Lines, expected: Any) -> None:
    check(tmp_path, name, [lines], expected)


def test_gradient_that_is_zero_on_one_rank_alone_is_no_finding(tmp_path: Path) -> None:
    with_it = [moved(number, (1.0, number, number + 1), (1.0, 5, 6)) for number in (1, 2, 3)]
    check(tmp_path, "unused", [[TWO, *ZERO], [TWO, *with_it]], None)


TEACHER = {"kind": "module", "module": 1, "class": "Teacher"}
TAUGHT = forward(module=1, grad=False, draws=True, line=at(4))


@pytest.mark.parametrize(
    ("forwards", "expected"),
    [
        ([TAUGHT, forward()], ("possible", 1, (0,), 4, "a model that no optimizer trains draws random numbers")),
        ([{**TAUGHT, "draws": False}, forward()], "no forward in evaluation mode was seen before a step"),
        ([{**TAUGHT, "training": False}, forward()], None),
        ([{**TAUGHT, "module": 0}, forward()], "no forward in evaluation mode was seen before a step"),
        ([TAUGHT], "no forward in evaluation mode was seen before a step"),  # nothing learns from it
    ],
)
def test_teacher_in_training_mode(tmp_path: Path, forwards: Lines, expected: Any) -> None:
    check(tmp_path, "evaluation", [[TEACHER, W, step(1, forwards=forwards)]], expected)


# ---- loss scales -----------------------------------------------------------------------------------------------------


def scaled(**changes: Any) -> dict[str, Any]:
    """Return a step with gradients that a GradScaler has multiplied, as the backward pass left them."""
    return step(1, backwards=[backward(bits={"0": [7]}, scale=4096.0)], **changes)


NO_SCALER = "no GradScaler was used"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (scaled(), ("likely", 1, (0,), 7, "step 1 uses gradients that are 4096 times too large")),
        (scaled(calls=[called("unscale")]), None),
        (scaled(calls=[called("scaled_step")]), None),
        (scaled(gradients=[[8, 2.0]]), NO_SCALER),  # divided by hand
        (step(1, backwards=[backward(scale=4096.0), backward(bits={"0": [7]})]), NO_SCALER),
        (scaled(gradients=None), NO_SCALER),
    ],
)
def test_step_past_a_scaler(tmp_path: Path, line: dict[str, Any], expected: Any) -> None:
    check(tmp_path, "unscaled", [[W, line]], expected)


def scaled_steps(*scales: float | None) -> Lines:
    return [step(number, calls=[called("scaled_step", value=each)]) for number, each in enumerate(scales, 1)]


READ = called("load", line=at(4), keys=["model", "optimizer", "scaler"])
RESTORED = called("load_optimizer", line=at(6), optimizer=0, updates=4)
LOADS = [READ, called("load_model"), RESTORED]


def resumed(calls: Lines, *scales: float) -> Lines:
    """Return steps of which the last one resumes."""
    *earlier, last = scaled_steps(*scales)
    return [W, *earlier, {**last, "calls": [*calls, *last["calls"]]}]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (resumed(LOADS, 1024.0, 256.0), ("likely", 2, (0,), 6, "loss scale begins again at 256", "was 1024")),
        (resumed(LOADS, 256.0), ("likely", 1, (0,), 6, "loss scale begins again at 256", "has 'scaler'")),
        (resumed([{**READ, "keys": ["optimizer"]}, RESTORED], 256.0), ("possible", 1, (0,), 6)),
        (resumed(LOADS, 256.0, 256.0), None),  # the scaler is the same one
        (resumed([called("load_scaler"), *LOADS], 1024.0, 256.0), None),
        (resumed([READ, {**RESTORED, "updates": 0}], 256.0), None),
        ([W, step(1, calls=LOADS)], None),  # no GradScaler
    ],
)
def test_loss_scale_is_restored(tmp_path: Path, lines: Lines, expected: Any) -> None:
    check(tmp_path, "restored", [lines], expected)


# ---- optimizers that are made again ----------------------------------------------------------------------------------


def renewed(*optimizers: int, state: str = "float32", jump: int = 0, made: int = 7) -> Lines:
    """Return two steps of each of some optimizers, one after the other, all with one parameter."""
    lines: Lines = []
    for place, optimizer in enumerate(optimizers):
        lines.append(held({}, optimizer=optimizer, made=at(made + optimizer * (made != 7))))
        for number in (1, 2):
            at_step = 2 * place + number
            before = at_step + jump * place
            lines.append(
                moved(number, (1.0, before, before + 1))
                | {"optimizer": optimizer, "number": at_step, "state": [[state] if state else []]}
            )
    return lines


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (renewed(0, 1, 2), ("likely", 3, (0,), 7, "made 3 times at train.py:7", "moments begin at zero")),
        (renewed(0, 1), ("possible", 3, (0,), 7, "made 2 times")),
        (renewed(0, 1, 2, state=""), "no checkpoint with an optimizer was read with torch.load before the first step"),
        (renewed(0, 1, 2, jump=9), None),  # other weights: a fold, a round of federated averaging
        (renewed(0, 1, 2, made=8), None),  # stages
        (renewed(0, 1, 0, 1), None),  # two optimizers that take turns
    ],
)
def test_optimizer_that_is_made_in_each_epoch(tmp_path: Path, lines: Lines, expected: Any) -> None:
    if expected is None:
        expected = "no checkpoint with an optimizer was read with torch.load before the first step"
    check(tmp_path, "restored", [lines], expected)


def test_optimizer_whose_state_is_loaded_is_not_new(tmp_path: Path) -> None:
    lines = renewed(0, 1, 2)
    lines[4]["calls"] = [called("load_optimizer", optimizer=1)]
    lines[7]["calls"] = [called("load_optimizer", optimizer=2)]
    check(tmp_path, "restored", [lines], None)


# ---- micro-batches ---------------------------------------------------------------------------------------------------

DIVIDED = [["DivBackward0", None, None, 2.0], ["MseLossBackward0", 1, None]]
MICRO = "no step had several micro-batches"


def accumulated(*counts: int, iterations: list[int], graph: list[list[Any]] = DIVIDED) -> Lines:
    """Return steps of some micro-batches, whose batches come from these iterations over a DataLoader."""
    places = iter(iterations)
    loaders = [{"kind": "loader", "loader": 0, "iteration": each, "line": at(9)} for each in sorted({*iterations})]
    batches, steps = [], []
    for number, count in enumerate(counts):
        for place in range(count):
            own = {"loader": 0, "iteration": next(places), "batch": place, "rows": [len(batches)]}
            batches.append({"kind": "batch", "step": number, **own})
        passes = [backward(*graph, adds=place > 0) for place in range(count)]
        steps.append(step(number + 1, backwards=passes))
    return [W, *loaders, *batches, *steps]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (accumulated(2, 2, 3, 2, iterations=[0, 0, 0, 0, 0, 1, 1, 1, 1]),
         ("likely", 3, (0,), 8, "step 3 adds 3 micro-batches, others 2", "end of the epoch before")),
        (accumulated(2, 2, 3, 2, iterations=[0, 0, 0, 0, 0, 1, 1, 1, 1], graph=[]), ("possible", 3, (0,), 8)),
        (accumulated(2, 2, 2, 2, iterations=[0, 0, 0, 0, 0, 1, 1, 1]), None),  # windows go on over epochs
        (accumulated(2, 2, 1, 2, iterations=[0, 0, 0, 0, 0, 1, 1]), None),  # a short last window
        (accumulated(2, 2, 3, 2, iterations=[0] * 9), None),
    ],
)  # fmt: skip
def test_micro_batches_of_two_epochs(tmp_path: Path, lines: Lines, expected: Any) -> None:
    check(tmp_path, "accumulation", [lines], expected)


# ---- replicas --------------------------------------------------------------------------------------------------------

FROZEN = held({}, {"frozen_in_ddp": at(4)})


def apart(own: int) -> Lines:
    """Return a step of two parameters, of which ranks have equal gradients of the first one only."""
    tables = {"gradients": [[7, 2.0], [own, 1.0]], "before": [1, 5], "weights": [[2, 1.0], [own, 1.0]]}
    return [step(1, **tables, changed=[1.0, 1.0], state=[[], []], lr=[0.1])]


def test_layer_that_was_frozen_when_ddp_was_made_names_ddps_line(tmp_path: Path) -> None:
    ranks = [[FROZEN, *apart(8)], [FROZEN, *apart(9)]]
    words = "the gradients of w1 differ", "were frozen when DDP was made at train.py:4"
    check(tmp_path, "gradients", ranks, ("certain", 1, (0, 1), 4, *words))


@pytest.mark.parametrize("name", ["weights-start", "gradients", "changes", "tied", "finite", "unused"])
def test_optimizer_that_gets_parameters_later(tmp_path: Path, name: str) -> None:
    one = [moved(number, (1.0, number, number + 1)) for number in (1, 2, 3)]
    two = [moved(number, (1.0, number, number + 1), (1.0, number, number + 1)) for number in (4, 5)]
    lines = [held({}), *one, held({}, {}), *two]
    check(
        tmp_path,
        name,
        [lines, lines],
        "no embedding began equal to another layer's separate tensor" if name == "tied" else None,
    )


SHARD = {"ddp": None, "mesh": [0, 1], "placements": ["S(0)"]}
IGNORED = {"ddp": None, "constant": True}
FSDP = {"kind": "module", "module": 0, "class": "FSDPNet", "wrapper": "fsdp2"}


def ignored(own: int, **changes: Any) -> Lines:
    return [FSDP, held(SHARD, IGNORED), {**apart(own)[0], "forwards": [forward()], **changes}]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([ignored(8), ignored(9)], ("likely", 1, (0, 1), 8, "w1", "FSDP does not average")),
        ([ignored(8), ignored(8)], None),
        ([ignored(8, exchanges=True), ignored(9, exchanges=True)], "the weights are sharded"),  # experts
    ],
)
def test_parameter_that_fsdp_ignores(tmp_path: Path, ranks: list[Lines], expected: Any) -> None:
    lines = [[{**line, "backwards": [backward(loss=float(rank))]} if line["kind"] == "step" else line for line in own]
             for rank, own in enumerate(ranks)]  # fmt: skip
    check(tmp_path, "gradients", lines, expected)


# ---- streams ---------------------------------------------------------------------------------------------------------


def streamed(*epochs: tuple[int | None, list[int]], persistent: bool = True) -> Lines:
    """Return steps, one for each sample of some epochs of a stream."""
    lines: Lines = [W]
    number = 0
    for iteration, (epoch, rows) in enumerate(epochs):
        own = {"loader": 0, "iteration": iteration}
        stream = {"sampler": "_InfiniteConstantSampler", "epoch": epoch, "persistent": persistent}
        lines.append({"kind": "loader", "line": at(9), **own, **stream})
        for place, row in enumerate(rows):
            lines.append({"kind": "batch", "step": number, "batch": place, "rows": [row], **own})
            number += 1
            lines.append(step(number))
    return lines


NO_SHUFFLE = "no DataLoader that shuffles was iterated twice"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (streamed((0, [1, 2, 3]), (1, [1, 2, 3])), ("likely", 4, (0,), 9, "same order", "its workers persist")),
        (streamed((0, [1, 2, 3]), (0, [1, 2, 3])), ("possible", 4, (0,), 9)),
        (streamed((0, [1, 2, 3]), (1, [2, 3, 1])), None),
        (streamed((0, [1, 2, 3]), (1, [1, 2, 3]), persistent=False), None),
        (streamed((None, [1, 2, 3]), (None, [1, 2, 3])), NO_SHUFFLE),
    ],
)
def test_epoch_that_workers_do_not_see(tmp_path: Path, lines: Lines, expected: Any) -> None:
    check(tmp_path, "epochs", [lines], expected)
