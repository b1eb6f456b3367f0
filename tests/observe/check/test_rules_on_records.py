"""Each rule of `frog check` on records of a few lines: what breaks it, what does not, and what leaves it unchecked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from check_records import LINE, step, write

from frog.observe.check.answers import RULES
from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.rank_records import read_records

Lines = list[dict[str, Any]]
RULE = {rule.name: rule for rule in RULES}


def at(line: int) -> list[Any]:
    return ["/home/one/train.py", line, "main"]


def end(steps: int, **changes: Any) -> dict[str, Any]:
    return {"kind": "end", "steps": steps, **changes}


def held(*parameters: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the line of an optimizer and its parameters."""
    usual = {"module": 0, "shape": [4, 4], "dtype": "float32", "trained": True, "ddp": [0, 1], "made": at(3)}
    every = [{"names": [f"w{number}"], **usual, **own} for number, own in enumerate(parameters)]
    return {"kind": "parameters", "optimizer": 0, "class": "SGD", "made": LINE, "parameters": every, **changes}


def forward(**changes: Any) -> dict[str, Any]:
    return {"module": 0, "training": True, "grad": True, "line": at(5), **changes}


def backward(*graph: list[Any], **changes: Any) -> dict[str, Any]:
    return {"line": at(8), "graph": list(graph), "loss": 1.0, **changes}


def moved(number: int, *tensors: tuple[float | None, int, int], lr: float = 0.1, **changes: Any) -> dict[str, Any]:
    """Return a step. tensors: the norm of each gradient (None: no gradient), and the weight's bits before and after."""
    tables = {
        "gradients": [None if norm is None else [7, norm] for norm, _, _ in tensors],
        "before": [before for _, before, _ in tensors],
        "weights": [[after, 1.0] for _, _, after in tensors],
        "changed": [1.0] * len(tensors),
        "state": [[] for _ in tensors],
    }
    return step(number, **{**tables, "lr": [lr], **changes})


def look(folder: Path, name: str, ranks: list[Lines]) -> Any:
    """Return what a rule says: what is broken, None if it holds, or why it could not be checked."""
    for rank, lines in enumerate(ranks):
        write(folder, rank, lines)
    try:
        return RULE[name].look(Comparison(read_records(folder)))
    except NotObservable as error:
        return str(error)


def check(folder: Path, name: str, ranks: list[Lines], expected: Any) -> None:
    """Compare with None, a reason, or (how sure, step, ranks, line, words of the finding)."""
    found = look(folder, name, ranks)
    if expected is None or isinstance(expected, str):
        assert (found.finding if hasattr(found, "finding") else found) == expected
        return
    sure, number, of_ranks, line, *words = expected
    assert not isinstance(found, str), found
    assert found is not None
    assert (found.sure, found.step, found.ranks) == (sure, number, of_ranks)
    assert (found.line and found.line.line) == line
    assert [word for word in words if word not in found.finding] == [], found.finding


W = held({})
NO_STEP = "no optimizer of torch.optim took a step"
ONE_RANK = "only one rank was recorded"


OF_CALLS = (
    "epochs",
    "twice",
    "batches",
    "keys",
    "saved",
    "words",
    "restored",
    "resume-order",
    "resume-samples",
    "evaluation",
    "left-out",
    "loaded",
)
"""Rules on loaders, files, sums and evaluations, which need neither steps nor ranks."""


@pytest.mark.parametrize("name", [name for name in RULE if name not in OF_CALLS])
def test_rule_needs_what_it_compares(tmp_path: Path, name: str) -> None:
    found = look(tmp_path, name, [[W]])
    assert found in (NO_STEP, ONE_RANK)


# ---- parameters ------------------------------------------------------------------------------------------------------

MODES = "no forward of a module was seen before a backward pass"
NEVER = "no rank came to its end"
FEW = "fewer than 3 steps of each optimizer were sampled"
NO_RATE = "fewer than two steps with a learning rate above 0 were sampled"
NOT_TIED = "no embedding began equal to another layer's separate tensor"
EVALUATES = forward(training=False, line=at(6))
LOST = {"module": 0, "name": "head.weight", "made": at(4)}
TWO = held({}, {})
SECOND_WITHOUT = [moved(number, (1.0, number, number + 1), (None, 5, 5)) for number in (1, 2, 3)]
TAKEN_AWAY = [backward(bits={"0": [7]}, brought={"0": {"0": [1.0]}}), backward(bits={"0": [None]})]
LOW = held({"dtype": "bfloat16"})
STILL = [moved(number, (1.0, 5, 5)) for number in (1, 2)]
EMBEDDED = held({"names": ["in"], "owner": "Embedding"}, {"names": ["out"], "owner": "Linear", "made": at(4)})


def in_low(*parts: float, dtype: str = "bfloat16", **changes: Any) -> Lines:
    """Return steps that change these parts of a tensor's elements."""
    steps = [moved(number, (1.0, number, number + 1), changed=[part]) for number, part in enumerate(parts, 1)]
    return [held({"dtype": dtype, **changes}), *steps]


@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        ("cleared", [W, step(1), step(2)], None),
        ("cleared", [W, step(1)], "no optimizer took a second step"),
        ("cleared", [W, step(1), step(2, stale=True, backwards=[backward(line=at(9)), backward()])],
         ("certain", 2, (0,), 9, "step 2 on rank 0 adds to the gradients of step 1")),
        ("cleared", [W, step(1), step(2, stale=True, backwards=[])], None),
        ("cleared", [W, step(1), step(2), step(3, stale=True, gradients=None)], None),
        ("training-mode", [W, step(1), step(2)], MODES),
        ("training-mode", [W, step(1, forwards=[forward()]), step(2, forwards=[forward()])], None),
        ("training-mode", [W, step(1, forwards=[forward()]), step(2, forwards=[EVALUATES])],
         ("likely", 2, (0,), 6, "since step 2, the model is in evaluation mode while it trains on rank 0")),
        ("training-mode", [W, step(1, forwards=[EVALUATES]), step(2, forwards=[EVALUATES])], None),
        ("training-mode", [W, step(1, forwards=[forward()]), step(2, forwards=[EVALUATES, forward()])], None),
        ("training-mode", [W, step(1, forwards=[forward()]), step(2, forwards=[{**EVALUATES, "grad": False}])], None),
        ("training-mode", [W, step(1, forwards=[{**EVALUATES, "grad": False}])], MODES),
        ("training-mode", [W, step(1, forwards=[forward()]), step(2, forwards=[EVALUATES], backwards=[])], None),
        ("training-mode", [W, step(1, forwards=[forward()], backwards=[])], MODES),
        ("training-mode", [W, step(1, forwards=[forward()]), step(2, forwards=[{**EVALUATES, "module": 1}])], None),
        ("training-mode", [{"kind": "module", "module": 0, "class": "ReLU", "modes": False}, W,
                           step(1, forwards=[forward()]), step(2, forwards=[EVALUATES])], None),
        ("optimizer", [W, step(1)], NEVER),
        ("optimizer", [W, step(1), end(1)], None),
        ("optimizer", [W, step(1), end(1, outside=[LOST])],
         ("likely", 1, (0,), 7, "no optimizer holds head.weight of the model, which has gradients: it is never")),
        ("optimizer", [held({}, made=None), step(1), end(1, outside=[LOST, {**LOST, "name": "b", "made": None}])],
         ("likely", 1, (0,), 4, "holds head.weight, b of the model, which have gradients: they are never trained")),
        ("optimizer", [W, step(1), end(1, outside=[{**LOST, "name": "w0"}])], None),
        ("optimizer", [W, step(1), end(1, outside=[{**LOST, "module": 1}])], ("likely", 1, (0,), 7)),
        ("optimizer", [held({"module": None}), step(1), end(1, outside=[{**LOST, "module": 1}])], None),
        ("optimizer", [held({"module": None}, {}), step(1), end(1, outside=[LOST])], ("likely", 1, (0,), 7)),
        ("optimizer", [{"kind": "module", "module": 1, "class": "FSDP", "wrapper": "fsdp1"}, W, step(1),
                       end(1, outside=[LOST])], None),
        ("unused", [TWO, *SECOND_WITHOUT[:2]], FEW),
        ("unused", [TWO, *SECOND_WITHOUT], ("possible", 1, (0,), 3, "w1 got no gradient in any of 3 steps")),
        ("unused", [held({}, {"trained": False}), *SECOND_WITHOUT], None),
        ("unused", [TWO, *SECOND_WITHOUT, moved(4, (1.0, 4, 5), (1.0, 5, 5))], None),
        ("unused", [held({}), *[moved(number, (None, 5, 5)) for number in (1, 2, 3)]],
         ("likely", 1, (0,), 7, "no parameter of the optimizer made at train.py:7")),
        ("unused", [held({}), *[moved(number, (None, 5, 5), backwards=TAKEN_AWAY) for number in (1, 2, 3)]],
         ("likely", 1, (0,), 8, "train.py:8 (main) brought some, pass 1 of 2 left them", "pass 2 took them")),
        ("changes", [W, step(1)], NO_RATE),
        ("changes", [W, *STILL], ("likely", 1, (0,), 7, "w0 does not change in 2 steps although it has a gradient")),
        ("changes", [W, *[moved(number, (1.0, 5, 5), lr=0.0) for number in (1, 2)]], NO_RATE),
        ("changes", [W, STILL[0], moved(2, (1.0, 5, 6))], None),
        ("changes", [W, STILL[0], moved(2, (0.0, 5, 5))], None),
        ("changes", [W, STILL[0], moved(2, (None, 5, 5))], None),
        ("changes", [W, STILL[0], moved(2, (9e-6, 5, 5))], None),  # times 0.1 is less than 1e-6 of the weight
        ("changes", [W, STILL[0], moved(2, (1.1e-5, 5, 5))], ("likely", 1, (0,), 7)),
        ("changes", [W, *STILL[:1], moved(2, (1.0, 5, 5), lr=1e-7)], None),
        ("changes", [held({"shape": [3, 5]}), *STILL], None),
        ("changes", [held({"shape": [16]}), *STILL], ("likely", 1, (0,), 7)),
        ("changes", in_low(0.1, 0.4, 0.9), ("likely", 1, (0,), 7, "update of w0 (bfloat16) is lost for 60 % of its")),
        ("changes", in_low(0.5, 0.5), ("likely", 1, (0,), 7, "lost for 50 % of its elements")),
        ("changes", in_low(0.2, 0.5, dtype="float16"), ("likely", 1, (0,), 7, "w0 (float16) is lost for 50 %")),
        ("changes", in_low(0.5, 0.51), None),
        ("changes", in_low(0.1, 0.1, dtype="float32"), None),
        ("changes", in_low(0.1, 0.1, shape=[15]), None),
        ("tied", [TWO, moved(1, (1.0, 5, 6), (1.0, 5, 6))], NOT_TIED),
        ("tied", [EMBEDDED, moved(1, (1.0, 5, 6), (1.0, 4, 6))], NOT_TIED),
        ("tied", [EMBEDDED, moved(1, (1.0, 5, 6), (1.0, 5, 6)), moved(2, (1.0, 6, 7), (1.0, 6, 8))],
         ("likely", 2, (0,), 4, "in and out were equal when training began and differ since step 2")),
        ("tied", [EMBEDDED, moved(1, (1.0, 5, 6), (1.0, 5, 6))], None),
        ("tied", [EMBEDDED, moved(2, (1.0, 5, 6), (1.0, 5, 7))], NOT_TIED),
        ("tied", [held({"owner": "Embedding", "constant": True}, {}), moved(1, (1.0, 5, 6), (1.0, 5, 7))], NOT_TIED),
        ("tied", [held({"owner": "Embedding"}, {"shape": [2, 8]}), moved(1, (1.0, 5, 6), (1.0, 5, 7))], NOT_TIED),
        ("tied", [held({"owner": "Embedding"}, {"owner": "Embedding"}), moved(1, (1.0, 5, 6), (1.0, 5, 7))], NOT_TIED),
        ("tied", [held({"owner": "Embedding"}, {"made": None}), moved(1, (1.0, 5, 6), (1.0, 5, 7))],
         ("likely", 1, (0,), 7)),
        ("state-type", [W, step(1, state=[["bfloat16"]])], None),
        ("state-type", [LOW, step(1, state=[["float32", "bfloat16"]])],
         ("possible", 1, (0,), 7, "the weights and the optimizer's state of w0 are in bfloat16")),
        ("state-type", [LOW, step(1, state=[["float32"]])],
         "some weights are in half precision, and the optimizer keeps no state in it"),
        ("finite", [W, step(1), step(2)], None),
        ("finite", [W, step(1), step(2, weights=[[5, None]])],
         ("certain", 2, (0,), 7, "step 2 on rank 0: w0 is not finite after the step, and the optimizer used it")),
        ("finite", [W, step(1), step(2, weights=[[5, None]], gradients=[[5, None]],
                                     backwards=[backward(), backward(line=at(9))])],
         ("certain", 2, (0,), 9, "the gradient of w0 is not finite")),
        ("finite", [W, step(1, gradients=[[5, None]]), step(2)], None),  # skipped
        ("finite", [W, step(2, weights=[[5, None]], gradients=[[5, None]], backwards=[],
                            calls=[{"call": "not_finite", "module": "Linear", "line": at(6)}])],
         ("certain", 2, (0,), 6, "the output of Linear is the first that is not finite")),
    ],
)  # fmt: skip
def test_rule_on_the_parameters_of_one_rank(tmp_path: Path, name: str, lines: Lines, expected: Any) -> None:
    check(tmp_path, name, [lines], expected)


def test_gradient_that_another_rank_has_is_not_missing(tmp_path: Path) -> None:
    with_it = [moved(number, (1.0, number, number + 1), (1.0, 5, 6)) for number in (1, 2, 3)]
    check(tmp_path, "unused", [[TWO, *SECOND_WITHOUT], [TWO, *with_it]], None)
    other = held({}, {"names": ["elsewhere"]})
    check(tmp_path, "unused", [[TWO, *SECOND_WITHOUT], [other, *with_it]], ("possible", 1, (0,), 3, "w1 got no"))


def test_first_not_finite_step_counts_and_of_its_ranks_one_that_saw_an_output(tmp_path: Path) -> None:
    bad = {"weights": [[5, None]], "gradients": [[5, None]]}
    seen = {"calls": [{"call": "not_finite", "module": "Linear", "line": at(6)}]}
    check(tmp_path, "finite", [[W, step(2, **bad)], [W, step(1, **bad)]], ("certain", 1, (1,), 7, "step 1 on rank 1"))
    check(
        *(tmp_path, "finite", [[W, step(1, **bad)], [W, step(1, **bad, **seen)]]),
        ("certain", 1, (0, 1), 6, "step 1 on rank 1: the output of Linear"),
    )


# ---- calls -----------------------------------------------------------------------------------------------------------

MEAN, SUMMED, SCALED = ["MeanBackward0", None, None], ["MseLossBackward0", 2, None], ["DivBackward0", None, None]
MICRO = "no step had several micro-batches"
TARGETS = "no cross entropy with a mean over several ranks or micro-batches was seen"


def micro(*graph: list[Any], bits: list[int] | None = None, **second: Any) -> dict[str, Any]:
    """Return a step of two micro-batches."""
    kept = {"bits": {"0": bits or [7]}}
    later = backward(*graph, **{"adds": True, **kept, **second})
    return step(1, gradients=[[7, 1.0]], backwards=[backward(*graph), later])


def counted(number: float, reduction: int = 1) -> dict[str, Any]:
    return backward(["NllLossBackward0", reduction, number])


def called(name: str, **changes: Any) -> dict[str, Any]:
    return {"call": name, "line": at(5), "elements": 4, "dtype": "float32", **changes}


@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        ("accumulation", [W, step(1)], MICRO),
        ("accumulation", [W, micro(MEAN)], ("likely", 1, (0,), 8, "the gradients of 2 micro-batches",
                                            "none is divided by 2: the gradients are 2 times those")),
        ("accumulation", [W, micro(["AddBackward0", None, None], ["MseLossBackward0", 1, None])],
         ("likely", 1, (0,), 8)),
        # a library that is called once runs forward, backward and step
        ("accumulation", [W, {**micro(MEAN), "forwards": [forward(rows=[1])], "line": at(8)}], ("likely", 1, (0,), 5)),
        ("accumulation", [W, micro(SUMMED)], None),
        ("accumulation", [W, micro(SCALED, MEAN)], None),
        ("accumulation", [W, micro(["MulBackward0", None, None], MEAN)], None),
        ("accumulation", [W, micro()], None),
        ("accumulation", [W, micro(MEAN, bits=[6])], None),  # divided after the backward
        ("accumulation", [W, micro(MEAN, line=at(9))], MICRO),
        ("accumulation", [W, micro(MEAN, adds=False)], MICRO),
        ("accumulation", [W, {**micro(MEAN), "stale": True}], MICRO),
        ("accumulation", [W, {**micro(MEAN), "gradients": None}], MICRO),
        ("accumulation", [W, {**micro(MEAN), "forwards": [forward(rows=[1]), forward(rows=[1])]}], MICRO),
        ("accumulation", [W, {**micro(MEAN), "forwards": [forward(rows=[1]), forward(rows=[2])]}],
         ("likely", 1, (0,), 8)),
        ("targets", [W, step(1)], TARGETS),
        ("targets", [W, step(1, backwards=[counted(10)])], TARGETS),
        ("targets", [W, step(1, backwards=[counted(10), counted(10)])], None),
        ("targets", [W, step(1, backwards=[counted(10), counted(8.5)])],
         ("possible", 1, (0,), 8, "unequal numbers of targets, 8.5 to 10, at train.py:8")),
        ("targets", [W, step(1, backwards=[counted(10), counted(8, 2)])], TARGETS),
        ("targets", [W, step(1, backwards=[counted(10), counted(8), backward(MEAN)])], None),
        ("keys", [W, step(1)], "no model was loaded with load_state_dict"),
        ("keys", [W, step(1, calls=[called("load_model")])], None),
        ("keys", [W, step(1, calls=[called("load_model"), called("load_model", missing=["a"], unexpected=["b", "c"])])],
         ("possible", 1, (0,), 5, "(1 missing, 2 unknown: a, b, c)")),
        ("keys", [W, step(1, calls=[called("load_model", missing=["module.a"])])],
         ("likely", 1, (0,), 5, "(1 missing, 0 unknown: module.a)")),
        ("keys", [W, step(1, calls=[called("load_model", unexpected=[*"abc", "_orig_mod.d", "e"])])],
         ("likely", 1, (0,), 5, "(0 missing, 5 unknown: a, b, c, _orig_mod.d)")),
        ("keys", [W, step(1, calls=[called("load_model", missing=["head"], line=None)])], None),
        ("keys", [W, step(1, calls=[called("load_model", missing=["module.a"], line=None)])],
         ("likely", 1, (0,), None, "load_state_dict left out keys")),
    ],
)  # fmt: skip
def test_rule_on_the_calls_of_one_rank(tmp_path: Path, name: str, lines: Lines, expected: Any) -> None:
    check(tmp_path, name, [lines], expected)


NO_RESUME = "no checkpoint with an optimizer was read with torch.load before the first step"
READ = called("load", keys=["model", "Optim_state"], rates=[0.1, 0.2])


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], NO_RESUME),
        ([called("load", keys=["model"])], NO_RESUME),
        ([READ, called("load_model")], ("likely", 1, (0,), 5, "has 'Optim_state', and no optimizer loaded it")),
        ([{**READ, "rates": [0.3]}, called("load_model")], ("possible", 1, (0,), 5)),
        ([READ, called("load_model", missing=["head"])], ("possible", 1, (0,), 5)),
        ([READ], None),
        ([READ, called("load_model"), called("load_optimizer")], None),
    ],
)
def test_optimizer_of_a_checkpoint_is_restored(tmp_path: Path, calls: Lines, expected: Any) -> None:
    check(tmp_path, "restored", [[W, step(1, calls=calls), step(2, lr=[0.2])]], expected)
    later = [W, step(1), step(2, calls=calls)]
    check(tmp_path, "restored", [later], NO_RESUME)


NO_CALL = "the program called no collective over all ranks in a recorded step"
OTHER_CALLS = "the ranks call different collectives over all ranks from step 1 on"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {}, None),
        ({"ranks": [0, 1]}, {"ranks": [0, 1]}, NO_CALL),
        ({}, {"ranks": [0]}, NO_CALL),
        ({}, {"call": "broadcast"}, OTHER_CALLS),
        ({}, {"elements": 5}, OTHER_CALLS),
        ({"call": "barrier"}, {"call": "barrier"}, NO_CALL),
        ({}, {"dtype": "bfloat16", "line": at(6)},
         ("certain", 1, (1,), 6, "all_reduce at train.py:5 (main) (rank 0) and train.py:6 (main) (rank 1): "
          "float32 meets bfloat16. The backend does not compare them")),
        ({}, {"op": "AVG"}, ("certain", 1, (1,), 5, "the default (SUM) meets AVG")),
        ({"op": "MAX"}, {}, ("certain", 1, (1,), 5, "MAX meets the default (SUM)")),
        ({"bits": 1}, {"bits": 1}, None),
        ({"bits": 1}, {"bits": 2}, ("certain", 1, (1,), 5, "the results differ between the ranks")),
        ({"bits": 1}, {}, None),
        ({"call": "reduce", "bits": 1}, {"call": "reduce", "bits": 2}, None),
        ({"call": "broadcast", "bits": 1}, {"call": "broadcast", "bits": 2}, ("certain", 1, (1,), 5)),
    ],
)  # fmt: skip
def test_collectives_of_two_ranks_are_compared(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], expected: Any
) -> None:
    ranks = [[W, step(1, calls=[called("all_reduce", **own) if "call" not in own else {**called(""), **own}])]
             for own in (first, second)]  # fmt: skip
    check(tmp_path, "collectives", ranks, expected)


NO_SUM = "the program reduces no gradients of its own"
SUM = called("all_reduce", bits=7)


@pytest.mark.parametrize(
    ("call", "graph", "losses", "num_parameters", "expected"),
    [
        (SUM, [MEAN], (1.0, 2.0), 1, ("likely", 1, (0,), 5, "since step 1, the gradients are the sum over 2 ranks",
                                      "2 times those of the whole batch")),
        ({**SUM, "op": "SUM"}, [MEAN], (1.0, 2.0), 1, ("likely", 1, (0,), 5)),
        ({**SUM, "ranks": [0, 1, 2]}, [MEAN], (1.0, 2.0), 1, ("likely", 1, (0,), 5, "over 3 ranks", "3 times")),
        ({**SUM, "op": "AVG"}, [MEAN], (1.0, 2.0), 1, NO_SUM),
        ({**SUM, "elements": 1}, [MEAN], (1.0, 2.0), 1, NO_SUM),
        ({**SUM, "elements": 2}, [MEAN], (1.0, 2.0), 1, ("likely", 1, (0,), 5)),
        ({**SUM, "bits": None}, [MEAN], (1.0, 2.0), 1, NO_SUM),
        ({**SUM, "bits": 8}, [MEAN], (1.0, 2.0), 1, None),
        (called("reduce", bits=7), [MEAN], (1.0, 2.0), 1, NO_SUM),
        (SUM, [SUMMED], (1.0, 2.0), 1, None),
        (SUM, [MEAN], (1.0, 1.0), 1, None),
        (SUM, [MEAN], (1.0, 2.0), 3, ("likely", 1, (0,), 5)),
        (SUM, [MEAN], (1.0, 2.0), 4, None),  # one of four is not half of them
    ],
)  # fmt: skip
def test_sum_of_means_is_found(
    tmp_path: Path, call: Any, graph: Any, losses: Any, num_parameters: int, expected: Any
) -> None:
    gradients = [[7 + 10 * number, 1.0] for number in range(num_parameters)]
    ranks = [
        [W, step(1, gradients=gradients, backwards=[backward(*graph, loss=loss)], calls=[call])] for loss in losses
    ]
    check(tmp_path, "sums", ranks, expected)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([], [], "torch.save was not called with a file name"),
        ([called("save")], [called("save")], "torch.save was not called with a file name"),
        ([called("save", path="a.pt")], [], None),
        ([called("save", path="a.pt")] * 2, [called("save", path="b.pt")], None),
        ([called("save", path="a.pt")], [called("save", path="a.pt", line=at(6))],
         ("likely", 2, (0, 1), 5, "ranks 0 and 1 write the same file before step 2: a.pt")),
    ],
)  # fmt: skip
def test_file_has_one_writer(tmp_path: Path, first: Lines, second: Lines, expected: Any) -> None:
    check(tmp_path, "one-writer", [[W, step(1), step(2, calls=own)] for own in (first, second)], expected)


def test_file_of_another_step_may_have_another_writer(tmp_path: Path) -> None:
    saves = [called("save", path="a.pt")]
    check(tmp_path, "one-writer", [[W, step(1, calls=saves)], [W, step(1), end(1, calls=saves)]], None)
    check(
        *(tmp_path, "one-writer", [[W, step(1), end(1, calls=saves)], [W, step(1), end(1, calls=saves)]]),
        ("likely", 2, (0, 1), 5),
    )


# ---- samples ---------------------------------------------------------------------------------------------------------

UNKNOWN = "which ranks must have samples of their own is not known: no DDP or FSDP"
FEW_BATCHES = "fewer than two batches of tensors were seen on two ranks"
ALONE = {"ddp": None}


def loaded(*rows: list[int], every: int = 1, iteration: int = 0, **changes: Any) -> Lines:
    """Return an iteration over a DataLoader, with a step after each `every` batches."""
    batches = [
        {"kind": "batch", "step": number // every, "loader": 0, "iteration": iteration, "batch": number, "rows": own}
        for number, own in enumerate(rows)
    ]
    return [{"kind": "loader", "loader": 0, "iteration": iteration, "line": at(4), **changes}, *batches]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([], [], FEW_BATCHES),
        (loaded([1, 2]), loaded([1, 2]), FEW_BATCHES),
        (loaded([1, 2], [3, 4]), loaded([1, 2], [3, 4]),
         ("certain", 1, (0, 1), 4, "ranks 0 and 1 train on the same samples, in all 2 batches that were compared")),
        (loaded([1, 2], [3, 4]), loaded([2, 1], [4, 3]), ("certain", 1, (0, 1), 4)),
        (loaded([1, 2], [3, 4]), loaded([1, 2], [3, 5]), None),
        (loaded([1, 2], [1, 2]), loaded([1, 2], [1, 2]), None),  # the same batch in every step
        (loaded([1, 2, 2], [3, 4, 4]), loaded([1, 1, 2], [3, 3, 4]), None),  # rows of one word each, of few words
        (loaded([1], [2]), loaded([1], [2]), ("certain", 1, (0, 1), 4)),
        (loaded([1, 1], [2, 2]), loaded([1, 1], [2, 2]), FEW_BATCHES),  # of equal rows nothing is known
        (loaded([1, 2], [3, 4], [5, 6], every=3), loaded([1, 2], [3, 4], [5, 6], every=3), FEW_BATCHES),  # evaluation
    ],
)  # fmt: skip
def test_data_ranks_have_samples_of_their_own(tmp_path: Path, first: Lines, second: Lines, expected: Any) -> None:
    check(tmp_path, "samples", [[W, *first, step(1), step(2)], [W, *second, step(1), step(2)]], expected)


@pytest.mark.parametrize(
    ("parameter", "module", "expected"),
    [
        (ALONE, {}, ("possible", 1, (0, 1), 4)),  # its weights begin equal
        ({**ALONE, "constant": True}, {}, UNKNOWN),
        ({**ALONE, "constant": True}, {"wrapper": "fsdp1"}, ("certain", 1, (0, 1), 4)),
        ({**ALONE, "constant": True}, {"wrapper": "deepspeed"}, ("certain", 1, (0, 1), 4)),
        ({**ALONE, "mesh": [0, 1], "placements": ["S(0)"]}, {"wrapper": "fsdp2"}, ("certain", 1, (0, 1), 4)),
        ({**ALONE, "mesh": [[0], [1]], "placements": ["S(0)", "S(1)"]}, {"wrapper": "fsdp2"}, UNKNOWN),
    ],
)
def test_ranks_with_samples_of_their_own_are_known_by_their_wrapper(
    tmp_path: Path, parameter: dict[str, Any], module: dict[str, Any], expected: Any
) -> None:
    own = [{"kind": "module", "module": 0, "class": "Linear", **module}, held(parameter), *loaded([1, 2], [3, 4])]
    losses = [backward(loss=None)]
    check(tmp_path, "samples", [[*own, step(1, backwards=losses), step(2, backwards=losses)]] * 2, expected)


def test_samples_without_a_loader_are_those_of_the_forwards(tmp_path: Path) -> None:
    steps = [step(number, forwards=[forward(rows=[number, 9])]) for number in (1, 2)]
    check(tmp_path, "samples", [[W, *steps]] * 2, ("certain", 1, (0, 1), 5, "in all 2 batches"))
    without = [step(number, forwards=[forward(rows=[number, 9], grad=False)]) for number in (1, 2)]
    check(tmp_path, "samples", [[W, *without]] * 2, FEW_BATCHES)


SHUFFLES = {"shuffle": True, "distributed": True}
ONCE = "no DataLoader that shuffles was iterated twice"


@pytest.mark.parametrize(
    ("first", "second", "rows", "expected"),
    [
        ({**SHUFFLES, "epoch": 0}, {**SHUFFLES, "epoch": 1}, [[3], [4]], None),
        ({**SHUFFLES, "epoch": 0}, {**SHUFFLES, "epoch": 0}, [[3], [4]],
         ("certain", 1, (0,), 4, "the DistributedSampler's epoch is 0 in iterations 1 and 2")),
        ({"shuffle": True}, {"shuffle": True}, [[3], [4]], None),
        ({"shuffle": True}, {"shuffle": True}, [[1], [2]],
         ("certain", 1, (0,), 4, "the first 2 batches of iterations 1 and 2", "the same samples in the same order")),
        ({"shuffle": True}, {"shuffle": True}, [[1], [2], [3]], ("certain", 1, (0,), 4, "the first 2 batches")),
        ({"shuffle": True}, {"shuffle": True}, [[1], [3]], None),
        ({}, {}, [[1], [2]], ONCE),
    ],
)  # fmt: skip
def test_each_epoch_has_its_own_order(tmp_path: Path, first: Any, second: Any, rows: Any, expected: Any) -> None:
    epochs = [*loaded([1], [2], **first), *loaded(*rows, iteration=1, **second)]
    check(tmp_path, "epochs", [[W, *epochs, step(1), step(2)]], expected)


def test_one_epoch_is_not_compared(tmp_path: Path) -> None:
    check(tmp_path, "epochs", [[W, *loaded([1], [2], **SHUFFLES, epoch=0), step(1)]], ONCE)


@pytest.mark.parametrize(
    ("settings", "every", "expected"),
    [
        ({"distributed": True, "padded": True, "samples": 10}, 3,
         ("possible", None, (0,), 4, "the evaluation at train.py:4", "pads 10 samples to a multiple of the ranks")),
        ({"distributed": True}, 3, None),
        ({"padded": True}, 3, None),
        ({"distributed": True, "padded": True}, 1, "no DataLoader was used for evaluation only"),
    ],
)  # fmt: skip
def test_padded_evaluation_counts_samples_twice(tmp_path: Path, settings: Any, every: int, expected: Any) -> None:
    check(tmp_path, "twice", [[W, *loaded([1], [2], [3], every=every, **settings), step(1)]], expected)


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ((1, 2), None),
        ((1, 1), ("possible", None, (0, 1), 4, "have the same seed on ranks 0 and 1")),
        ((1, None), "no DataLoader has workers on all ranks"),
        ((0, 0), ("possible", None, (0, 1), 4)),
    ],
)
def test_workers_of_ranks_have_their_own_seeds(tmp_path: Path, seeds: Any, expected: Any) -> None:
    check(tmp_path, "worker-seeds", [[W, *loaded(seed=seed), step(1)] for seed in seeds], expected)


NOT_DRAWN = "fewer than two training steps of data ranks were sampled"


@pytest.mark.parametrize(
    ("first", "second", "parameter", "expected"),
    [
        ([1, 2], [1, 2], {}, ("possible", 1, (0, 1), 5, "ranks 0 and 1 have the same random state before each")),
        ([1, 2, 3], [1, 2], {}, ("possible", 1, (0, 1), 5)),
        ([1, 2], [1, 3], {}, None),
        ([1, 1], [1, 1], {}, None),  # the program draws none
        ([1], [1], {}, NOT_DRAWN),
        ([1, None], [1, None], {}, NOT_DRAWN),
        ([1, 2], [1, 2], {"ddp": None, "constant": True}, NOT_DRAWN),
    ],
)
def test_data_ranks_draw_different_numbers(
    tmp_path: Path, first: Any, second: Any, parameter: Any, expected: Any
) -> None:
    ranks = [
        [held(parameter), *(step(number, forwards=[forward(random=state)]) for number, state in enumerate(own, 1))]
        for own in (first, second)
    ]
    check(tmp_path, "randomness", ranks, expected)


@pytest.mark.parametrize(
    ("states", "draws", "epochs", "is_broken"),
    [
        ([1, 1, 1, 2, 2, 2], False, 0, False),  # only the loader's seed, once in an epoch
        ([1, 1, 1, 2, 2, 2], True, 0, True),
        ([1, 2, 3, 4, 4, 4], False, 0, True),
        ([1, 2, 2, 2], False, 0, False),
        ([1, 2, 3, 4], False, 3, False),  # an epoch of one batch
        ([1, 2, 3, 4], False, 2, True),
        ([1, 2, 3, 4], True, 3, True),
    ],
)
def test_seed_of_an_epoch_is_no_noise(tmp_path: Path, states: Any, draws: bool, epochs: int, is_broken: bool) -> None:
    own = [line for number in range(epochs) for line in loaded(iteration=number)]
    own += [step(at, forwards=[forward(random=state, draws=draws)]) for at, state in enumerate(states, 1)]
    expected = ("possible", 1, (0, 1), 5) if is_broken else None
    check(tmp_path, "randomness", [[held({}), *own]] * 2, expected)


# ---- replicas --------------------------------------------------------------------------------------------------------

NO_REPLICA = "no parameter is known to be equal on several ranks"
SHARDED = "the weights are sharded"
NO_COMMON = "the ranks have no sampled step in common"
DDP = {"kind": "module", "module": 0, "class": "Linear", "wrapper": "ddp"}
EQUAL = ("weights-start", "weights-between", "gradients", "learning-rates", "weights-after", "steps")


def one(number: int, before: int, after: int, bits: int = 7, norm: float = 2.0, **changes: Any) -> dict[str, Any]:
    """Return a step of an optimizer with one parameter."""
    tensors = {"gradients": [[bits, norm]], "before": [before], "weights": [[after, 1.0]]}
    return step(number, **{**tensors, "backwards": [backward(bits={"0": [bits]})], **changes})


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize(
    ("parameter", "module", "lines", "expected"),
    [
        ({}, {}, [one(1, 5, 6), one(2, 6, 7), end(2)], None),
        ({"ddp": None, "constant": True}, {}, [one(1, 5, 6)], NO_REPLICA),
        ({"ddp": None}, {"wrapper": "fsdp1"}, [one(1, 5, 6)], SHARDED),
        ({"ddp": None}, {"wrapper": "fsdp2"}, [one(1, 5, 6)], SHARDED),
        ({"ddp": None}, {"wrapper": "deepspeed"}, [one(1, 5, 6)], SHARDED),
        ({"ddp": None}, {}, [one(1, 5, 6, messages=True)], NO_REPLICA),  # stages of a pipeline
        ({"ddp": None}, {}, [one(1, 5, 6), end(1, messages=True)], NO_REPLICA),
        ({"ddp": None, "mesh": [0, 1]}, {}, [one(1, 5, 6)], NO_REPLICA),
        ({"ddp": [0]}, {}, [one(1, 5, 6)], NO_REPLICA),
        ({}, {}, [one(1, 5, 6, gradients=None)], NO_COMMON),
    ],
)
def test_rule_on_replicas_needs_replicas(
    tmp_path: Path, name: str, parameter: Any, module: Any, lines: Lines, expected: Any
) -> None:
    check(tmp_path, name, [[{**DDP, "wrapper": None, **module}, held(parameter), *lines]] * 2, expected)


LOADS = {"calls": [called("load_model")]}
WRITES = {"calls": [called("written", line=at(4))]}
WRAPS = {"calls": [called("ddp")]}
WRAPS_WRITES = {"calls": [called("ddp"), called("written", line=at(4))]}


@pytest.mark.parametrize(
    ("name", "first", "second", "expected"),
    [
        ("weights-start", [one(1, 5, 6)], [one(1, 4, 6)],
         ("certain", 1, (0, 1), 3, "the ranks' weights already differ before the first optimizer step in w0")),
        ("weights-start", [one(1, 5, 6, **LOADS)], [one(1, 4, 6)],
         ("certain", 1, (0, 1), 5, "in w0: only rank 0 called load_state_dict, at train.py:5")),
        ("weights-start", [one(1, 5, 6, **LOADS)], [one(1, 4, 6, **LOADS)], ("certain", 1, (0, 1), 3)),
        ("weights-start", [one(1, 5, 6), one(2, 5, 6)], [one(1, 5, 6), one(2, 4, 6)], None),
        ("weights-between", [one(1, 5, 6), one(2, 6, 7)], [one(1, 5, 6), one(2, 8, 7)],
         ("certain", 2, (1,), 7, "w0 changed on rank 1 between steps 1 and 2, not by the optimizer")),
        ("weights-between", [one(1, 5, 6), one(2, 6, 7)], [one(1, 5, 6), one(2, 8, 7, **LOADS)],
         ("certain", 2, (1,), 5)),
        ("weights-between", [one(1, 5, 6), one(2, 6, 7)], [one(1, 5, 6), one(2, 8, 7, **WRITES)],
         ("certain", 2, (1,), 4)),
        ("weights-between", [one(1, 5, 6), one(2, 6, 7, **WRITES)], [one(1, 5, 6), one(2, 8, 7, **WRITES)],
         ("certain", 2, (1,), 7)),
        # equal after DDP, and changed before the first step
        ("weights-start", [one(1, 5, 6, **WRAPS)], [one(1, 4, 6, **WRAPS_WRITES)], None),
        ("weights-between", [one(1, 5, 6, **WRAPS)], [one(1, 4, 6, **WRAPS_WRITES)], ("certain", 1, (0, 1), 4)),
        ("weights-start", [one(1, 5, 6, **WRAPS_WRITES)], [one(1, 4, 6, **WRAPS_WRITES)], ("certain", 1, (0, 1), 3)),
        ("weights-start", [one(1, 5, 6)], [one(1, 4, 6, **WRITES)], ("certain", 1, (0, 1), 3)),
        ("weights-between", [one(1, 5, 6), one(2, 9, 7)], [one(1, 5, 6), one(2, 8, 7)],
         ("certain", 2, (0, 1), 7, "w0 changed on ranks 0 and 1 between")),
        ("weights-between", [one(1, 5, 6), one(2, 9, 7)], [one(1, 5, 6), one(2, 9, 7)], None),
        ("weights-between", [one(1, 5, 6), one(3, 6, 7)], [one(1, 5, 6), one(3, 8, 7)],
         "no two steps in a row were sampled on all ranks with equal weights between them"),
        ("weights-between", [one(1, 5, 6), one(2, 6, 7)], [one(1, 5, 8), one(2, 8, 7)],
         "no two steps in a row were sampled on all ranks with equal weights between them"),
        ("weights-after", [one(1, 5, 6)], [one(1, 5, 8)],
         ("certain", 1, (0, 1), 7, "step 1 made w0 different on ranks 0 and 1 although", "states differ")),
        ("weights-after", [one(1, 5, 6)], [one(1, 5, 8, calls=[called("load_optimizer")])],
         ("certain", 1, (0, 1), 5, "states differ: only rank 1 loaded the optimizer's state, at train.py:5")),
        ("weights-after", [one(1, 5, 6)], [one(1, 5, 8, lr=[0.2])], None),
        ("weights-after", [one(1, 5, 6)], [one(1, 4, 8)], None),
        ("weights-after", [one(1, 5, 6)], [one(1, 5, 8, bits=9)], None),
        ("learning-rates", [one(1, 5, 6), one(2, 6, 7)], [one(1, 5, 6), one(2, 6, 7, lr=[0.25, 1.0])],
         ("certain", 2, (0, 1), 7, "the learning rates differ since step 2: 0.1 on rank 0, 0.25 on rank 1")),
        ("learning-rates", [one(1, 5, 6, gradients=None), one(2, 6, 7)], [one(1, 5, 6, lr=[0.3]), one(2, 6, 7)],
         ("certain", 1, (0, 1), 7)),
        ("steps", [one(1, 5, 6), end(1, backwards=1)], [one(1, 5, 6), one(2, 6, 7, line=at(9)), end(2)],
         ("certain", 2, (0,), 9, "rank 0 took 1 optimizer steps, rank 1 2: some ranks skip steps alone")),
        ("steps", [one(1, 5, 6), end(1)], [one(1, 5, 6), one(2, 6, 7), end(2)],
         "the ranks ran different numbers of backward passes"),
        ("steps", [one(1, 5, 6)], [one(1, 5, 6), end(1)], "not all ranks came to their end"),
    ],
)  # fmt: skip
def test_rule_on_the_weights_of_two_replicas(
    tmp_path: Path, name: str, first: Lines, second: Lines, expected: Any
) -> None:
    check(tmp_path, name, [[DDP, W, *first], [DDP, W, *second]], expected)


def test_replica_that_only_begins_equal_need_not_stay_so(tmp_path: Path) -> None:
    alone = held(ALONE)
    for name, second, number in (
        ("weights-between", [one(1, 5, 6), one(2, 8, 7)], 2),
        ("weights-after", [one(1, 5, 9), one(2, 9, 7)], 1),
        ("learning-rates", [one(1, 5, 6, lr=[0.2]), one(2, 6, 7)], 1),
        ("steps", [one(1, 5, 6), end(1, backwards=1)], 2),
    ):
        first = [one(1, 5, 6), one(2, 6, 7), end(2)]
        found = look(tmp_path, name, [[alone, *first], [alone, *second]])
        assert (found.sure, found.step) == ("possible", number), name


def used(bits: int, norm: float = 2.0, **changes: Any) -> dict[str, Any]:
    """Return a first step that uses a gradient of its own, and leaves other weights behind."""
    return one(1, 5, 100 + bits, bits, norm, **changes)


SINCE = "since step 1, the gradients of w0 differ between ranks 0 and 1 when the optimizer uses them"
INSIDE = {"kind": "module", "module": 1, "class": "Linear", "inside": "DDP"}
NO_SYNC = {"forwards": [forward(sync=True), forward(sync=False, line=at(6))]}
AFTER = {"backwards": [backward(bits={"0": [4]})]}
CLIPS = {"calls": [called("clip", norm=1.0, limit=1.0, line=at(6))]}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {}, ("certain", 1, (0, 1), 8, f"{SINCE}: nothing averaged them")),
        ({"backwards": []}, {"backwards": []}, ("certain", 1, (0, 1), 7, "nothing averaged them")),
        ({"weights": [[6, 1.0]]}, {"weights": [[6, 1.0]]}, None),  # something else was used
        ({"weights": [[5, 1.0]]}, {"weights": [[5, 1.0]]}, ("certain", 1, (0, 1), 8)),  # nothing was used
        ({"gradients": None}, {}, NO_COMMON),
        ({"forwards": [forward(module=1, line=at(9))]}, {},
         ("certain", 1, (0, 1), 9, f"{SINCE}: the forward at train.py:9 (main) calls the module inside DDP")),
        ({"forwards": [forward(module=1), forward()]}, {}, ("certain", 1, (0, 1), 8, "nothing averaged them")),
        ({"forwards": [forward(module=1, grad=False)]}, {}, ("certain", 1, (0, 1), 8, "nothing averaged them")),
        (NO_SYNC, NO_SYNC, ("certain", 1, (0, 1), 6, "the last forward before the step, at train.py:6")),
        (NO_SYNC, {"forwards": [forward(sync=True)]}, ("certain", 1, (0, 1), 8, "nothing averaged them")),
        ({"forwards": [forward(sync=None)]}, {}, ("certain", 1, (0, 1), 8, "nothing averaged them")),
        (AFTER, {**AFTER, "gradients": [[9, 3.0]]},
         ("certain", 1, (1,), 7, "although they were equal after the backward pass at train.py:8",
          "; those of rank 1 are 1.5 times those of rank 0: each rank scaled or changed its own")),
        (AFTER, AFTER, ("certain", 1, (0, 1), 7, "at train.py:8 (main): each rank scaled")),
        ({**AFTER, **CLIPS}, {**AFTER, **CLIPS, "gradients": [[9, 1.0]]},
         ("certain", 1, (1,), 6, "0.5 times those of rank 0: they are clipped at train.py:6 (main) by a norm")),
        (AFTER, {"backwards": [backward(bits={"0": [3]})]}, ("certain", 1, (0, 1), 8, "nothing averaged them")),
        (AFTER, {"backwards": [backward(bits={"1": [4]})]}, ("certain", 1, (0, 1), 8, "nothing averaged them")),
        (AFTER, {"backwards": []}, NO_COMMON),  # one rank ran fewer backward passes
    ],
)  # fmt: skip
def test_reason_why_gradients_of_replicas_differ(tmp_path: Path, first: Any, second: Any, expected: Any) -> None:
    ranks = [[DDP, INSIDE, W, used(bits, **own)] for bits, own in ((1, first), (2, second))]
    check(tmp_path, "gradients", ranks, expected)


def several(*bits: int, weights: int, **changes: Any) -> dict[str, Any]:
    """Return a first step with several parameters."""
    tensors = {"gradients": [[each, 2.0] for each in bits], "before": [5] * len(bits)}
    after = [[weights + each, 1.0] for each in bits]
    return step(1, **{**tensors, "weights": after, "backwards": [backward(bits={})], **changes})


@pytest.mark.parametrize(
    ("parameters", "first", "second", "exchanges", "expected"),
    [
        ([{}, {"made": at(4)}], (1, 2), (1, 3), False,
         ("certain", 1, (0, 1), 4, "the gradients of w1 differ", "while those of 1 other parameters are equal")),
        ([{}, ALONE], (1, 2), (1, 3), False, ("likely", 1, (0, 1), 3, "gradients of w1", "these are not reduced")),
        ([{}, ALONE], (1, 2), (1, 3), True, ("possible", 1, (0, 1), 3)),
        ([ALONE, {**ALONE, "made": None}], (1, 2), (1, 3), False, ("likely", 1, (0, 1), 8, "gradients of w1")),
        ([{}, {}], (1, 2), (2, 1), False,
         ("certain", 1, (0, 1), 7, "hold the same gradients, but for other parameters: w0, w1 are exchanged")),
        ([{}, {}], (1, 2), (3, 4), False, ("certain", 1, (0, 1), 8, "gradients of w0, w1", "nothing averaged them")),
        ([{}] * 6, (1, 2, 3, 4, 5, 6), (11, 12, 13, 14, 15, 16), False,
         ("certain", 1, (0, 1), 8, "the gradients of w0, w1, w2, w3 and 2 more differ")),
    ],
)  # fmt: skip
def test_gradients_of_some_parameters_differ(
    tmp_path: Path, parameters: Any, first: Any, second: Any, exchanges: bool, expected: Any
) -> None:
    losses = [[backward(loss=loss, bits={})] for loss in (1.0, 2.0)]
    ranks = [
        [DDP, held(*parameters), several(*bits, weights=50 * rank, backwards=losses[rank], exchanges=exchanges)]
        for rank, bits in enumerate((first, second))
    ]
    check(tmp_path, "gradients", ranks, expected)


@pytest.mark.parametrize(
    ("first", "second", "sure", "words"),
    [
        (
            {"rows": [1]},
            {"rows": [2]},
            "likely",
            "and the ranks exchange nothing at all: each trains a model of its own",
        ),
        ({"rows": [1]}, {"rows": [1]}, "possible", "each trains a model of its own"),
        ({}, {}, "possible", "each trains a model of its own"),
        ({"rows": [1], "lr": [0.2]}, {"rows": [2]}, "possible", "each trains a model of its own"),
        ({"rows": [1], "calls": [called("all_reduce")]}, {"rows": [2]}, "likely", "nothing averaged them"),
        ({"rows": [1], "batches": [[1, 2]]}, {"rows": [2], "batches": [[2, 3]]}, "possible", "nothing averaged them"),
        ({"rows": [1], "batches": [[1, 2]]}, {"rows": [2], "batches": [[3, 4]]}, "likely", "nothing averaged them"),
    ],
)
def test_models_without_a_wrapper_may_train_apart_on_purpose(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], sure: str, words: str
) -> None:
    ranks = []
    for bits, own in ((1, dict(first)), (2, dict(second))):
        rows, batches = own.pop("rows", None), own.pop("batches", [])
        lines = [{**DDP, "wrapper": None}, held(ALONE), *loaded(*batches)[1:]]
        ranks.append([*lines, used(bits, forwards=[forward(rows=rows)], **own)])
    check(tmp_path, "gradients", ranks, (sure, 1, (0, 1), 8, words))
    found = look(tmp_path, "gradients", ranks)
    assert ("exchange nothing" in found.finding) == ("calls" not in first)


@pytest.mark.parametrize(("elements", "sure"), [(15, "certain"), (16, "possible"), (17, "possible")])
def test_program_that_averages_its_weights_too_may_have_different_gradients(
    tmp_path: Path, elements: int, sure: str
) -> None:
    calls = [called("all_reduce", elements=elements - 9), called("all_reduce", elements=9)]
    found = look(tmp_path, "gradients", [[DDP, W, used(1, calls=calls)], [DDP, W, used(2)]])
    assert (found.sure, "Local SGD" in found.advice) == (sure, sure == "possible")


def test_evidence_has_the_norm_of_each_rank_and_its_file(tmp_path: Path) -> None:
    ranks = [[DDP, W, used(1)], [DDP, W, used(2, 0.125, gradients=[[2, None]])]]
    found = look(tmp_path, "gradients", ranks)
    where = "observed/attempt_0/rank_{}/checks.jsonl"
    assert found.evidence == (
        f"rank 0   step 1: gradients of w0: norm 2  [{where.format(0)}]",
        f"rank 1   step 1: gradients of w0: not finite  [{where.format(1)}]",
    )
    found = look(tmp_path, "gradients", [[DDP, W, used(1)], [DDP, W, used(2, gradients=[None])]])
    assert found.evidence[1].startswith("rank 1   step 1: gradients of w0: none")


NO_CLIP = "no call of torch.nn.utils.clip_grad_norm_ was sampled on all ranks"


def clipped(norm: float | None, limit: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    calls = [called("clip", norm=norm, limit=limit, line=at(6), elements=0), called("all_reduce", elements=16)]
    return one(1, 5, 6, calls=calls, **changes)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (clipped(2.0), clipped(3.0), ("likely", 1, (0, 1), 6, "clips by a norm of its own at train.py:6", "2, 3")),
        (clipped(2.0), clipped(2.0 * (1 + 9e-7)), None),
        (clipped(2.0), clipped(2.0 * (1 + 2e-6)), ("likely", 1, (0, 1), 6)),
        (clipped(0.5), clipped(1.0), None),  # nothing was clipped
        (clipped(0.5), clipped(1.1), ("likely", 1, (0, 1), 6)),
        (clipped(0.5, None), clipped(1.1, None), None),
        (clipped(2.0), clipped(None), NO_CLIP),
        (clipped(2.0), one(1, 5, 6), NO_CLIP),
        (one(1, 5, 6), one(1, 5, 6), NO_CLIP),
        ({**clipped(2.0), "gradients": None}, clipped(3.0), NO_CLIP),
    ],
)  # fmt: skip
def test_gradients_in_parts_are_clipped_by_the_norm_of_the_whole(
    tmp_path: Path, first: Any, second: Any, expected: Any
) -> None:
    own = [
        [held({"names": [f"of rank {rank}"], "ddp": None, "constant": True}), line]
        for rank, line in enumerate((first, second))
    ]
    check(tmp_path, "clipping", own, expected)


def test_norms_of_ranks_that_reduce_nothing_or_hold_replicas_may_differ(tmp_path: Path) -> None:
    def parts(lines: list[dict[str, Any]], **parameter: Any) -> list[Lines]:
        table = {"ddp": None, "constant": True, **parameter}
        return [[held({"names": [f"of rank {rank}"], **table}), line] for rank, line in enumerate(lines)]

    lines = [clipped(2.0), clipped(3.0)]
    for line in lines:
        line["calls"][1]["elements"] = 15
    check(tmp_path, "clipping", parts(lines), None)  # a reduction smaller than the parameter
    check(tmp_path, "clipping", parts([{**line, "messages": True} for line in lines]), ("likely", 1, (0, 1), 6))
    apart = [{**line, "gradients": [[bits, 1.0]]} for line, bits in zip(lines, (7, 8), strict=True)]
    check(tmp_path, "clipping", [[DDP, W, line] for line in apart], None)  # gradients' finding
    before = ("likely", 1, (0, 1), 6, "before they are averaged, by 2, 3")
    check(tmp_path, "clipping", [[DDP, W, line] for line in lines], before)
    some = held({}, {"names": ["x"], "ddp": None, "constant": True})
    two = [{**line, "gradients": [[7, 1.0]] * 2, "before": [5, 5], "weights": [[6, 1.0]] * 2} for line in lines]
    check(tmp_path, "clipping", [[DDP, some, line] for line in two], ("likely", 1, (0, 1), 6))


# ---- the comparison --------------------------------------------------------------------------------------------------


def compared(folder: Path, ranks: list[Lines]) -> Comparison:
    for rank, lines in enumerate(ranks):
        write(folder, rank, lines)
    return Comparison(read_records(folder))


def test_parameter_is_named_by_its_first_names_or_its_place(tmp_path: Path) -> None:
    table = held({"names": ["a", "b", "c"]}, {"names": []}, {"names": [], "made": None})
    case = compared(tmp_path, [[table]])
    place = "parameter 1 of the optimizer, made at train.py:3 (main)"
    assert [case.name(0, index) for index in range(4)] == [
        *("a = b", place, "parameter 2 of the optimizer", "parameter 3 of the optimizer")
    ]
    assert case.name(1, 0) == "parameter 0 of the optimizer"
    parameter = case.parameter(0, 0)
    assert parameter is not None
    assert parameter.numel == 16


@pytest.mark.parametrize(
    ("losses", "norm", "bits", "known"),
    [
        ((1.0, 2.0), 1.0, (7, 7), True),
        ((1.0, 1.0), 1.0, (7, 7), False),
        ((1.0, None), 1.0, (7, 7), False),
        ((1.0, 2.0), 0.0, (7, 7), False),
        ((1.0, 2.0), 1.0, (7, 8), False),
    ],
)
def test_equal_gradients_of_different_losses_were_reduced(
    tmp_path: Path, losses: Any, norm: float, bits: Any, known: bool
) -> None:
    steps = [one(1, 5, 6, own, norm, backwards=[backward(loss=loss)]) for own, loss in zip(bits, losses, strict=True)]
    (replica,) = compared(tmp_path, [[held(ALONE), line] for line in steps]).replicas
    assert (replica.ranks, replica.known) == ((0, 1), known)


@pytest.mark.parametrize(
    ("placements", "mesh", "groups"),
    [
        (["R"], [0, 1, 2, 3], [(0, 1, 2, 3)]),
        (["S(0)"], [0, 1, 2, 3], []),
        (["R", "S(0)"], [[0, 1], [2, 3]], [(0, 2), (1, 3)]),
        (["S(0)", "R"], [[0, 1], [2, 3]], [(0, 1), (2, 3)]),
        (["R", "R"], [[0, 1], [2, 3]], [(0, 1, 2, 3)]),
        (["R"], [5, 6], []),
    ],
)
def test_placements_say_which_ranks_hold_copies(tmp_path: Path, placements: Any, mesh: Any, groups: Any) -> None:
    table = held({"ddp": None, "placements": placements, "mesh": mesh})
    case = compared(tmp_path, [[table, one(1, 5, 6)]] * 4)
    assert [(replica.ranks, replica.known) for replica in case.replicas] == [(group, True) for group in groups]


@pytest.mark.parametrize(("second", "is_replica"), [((9, 9), False), ((6, 8), True), ((7, 7), True)])
def test_weights_that_are_averaged_between_steps_are_no_replicas(tmp_path: Path, second: Any, is_replica: bool) -> None:
    """Local SGD: the ranks' weights differ after a step, and are equal before the next."""
    after = (6, 8) if not is_replica else (6, 6)
    ranks = [[held(ALONE), one(1, 5, after[rank]), one(2, second[rank], 10)] for rank in (0, 1)]
    assert bool(compared(tmp_path, ranks).replicas) == is_replica


def test_step_that_only_some_ranks_took_ends_the_comparison(tmp_path: Path) -> None:
    passes = [backward(), backward()]
    first, second = [one(1, 5, 6), one(2, 6, 7)], [one(1, 5, 6), one(2, 6, 7, backwards=passes)]
    case = compared(tmp_path, [[W, *first], [W, *second]])
    assert [moment.step for moment in case.moments(0)] == [1]
    case = compared(tmp_path, [[W, *first], [W, *first[:1]]])
    assert [(moment.step, list(moment.of)) for moment in case.moments(0)] == [(1, [0, 1]), (2, [0])]


def of_second(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "optimizer": 1, "number": 2}


def test_optimizers_are_compared_one_by_one(tmp_path: Path) -> None:
    """The second optimizer's parameter has the same place as the first one's, and a step of the same number."""
    tables = [held({"names": ["first"]}), {**held({"names": ["second"]}), "optimizer": 1}]
    begin = [DDP, *tables, one(1, 5, 6)]
    for bits, weights, name, words in (
        (9, 109, "gradients", "the gradients of second differ"),
        (7, 8, "weights-after", "step 1 made second different"),
    ):
        ranks = [
            [*begin, of_second(one(1, 5, 6))],
            [*begin, of_second(one(1, 5, weights, bits))],
        ]
        found = look(tmp_path, name, ranks)
        assert words in found.finding
    changed = [[*begin, of_second(one(1, before, 6))] for before in (5, 4)]
    assert look(tmp_path, "weights-start", changed).finding.endswith("before the first optimizer step in second")
    rates = [[*begin, of_second(one(1, 5, 6, lr=[rate]))] for rate in (0.1, 0.2)]
    assert "0.1 on rank 0, 0.2 on rank 1" in look(tmp_path, "learning-rates", rates).finding
    skipped = [
        [*begin, of_second(one(1, 5, 6)), end(2)],
        [*begin, end(1, backwards=1)],
    ]
    assert look(tmp_path, "steps", skipped).finding.startswith("rank 1 took 0 optimizer steps, rank 0 1")
    case = compared(tmp_path, [[*begin, of_second(one(1, 5, 6))]] * 2)
    assert (case.optimizers, case.name(0, 0), case.name(1, 0)) == ([0, 1], "first", "second")
    assert [(moment.optimizer, moment.step) for moment in case.all_sampled()] == [(0, 1), (1, 1)]


def test_later_step_is_looked_at_after_one_that_tells_nothing(tmp_path: Path) -> None:
    """Each rule goes on to the next step, rank or optimizer."""
    tables = [held({"names": [f"of rank {rank}"], "ddp": None, "constant": True}) for rank in (0, 1)]
    later = [
        [table, one(1, 5, 6), {**clipped(norm), "step": 2, "number": 2}]
        for table, norm in zip(tables, (2.0, 3.0), strict=True)
    ]
    check(tmp_path, "clipping", later, ("likely", 2, (0, 1), 6))
    twice = {**micro(MEAN), "step": 2, "number": 2}
    check(tmp_path, "accumulation", [[W, step(1), twice]], ("likely", 2, (0,), 8))
    check(tmp_path, "accumulation", [[W, micro(SUMMED), twice]], ("likely", 2, (0,), 8))
    check(tmp_path, "accumulation", [[W, micro(MEAN, bits=[6]), twice]], ("likely", 2, (0,), 8))
    first = [W, one(1, 5, 6), one(3, 6, 7), one(4, 7, 8)]
    other = [W, one(1, 5, 6), one(3, 9, 7), one(4, 8, 8)]
    check(tmp_path, "weights-between", [first, other], ("certain", 4, (1,), 7))
    sums = [
        [W, step(1), step(2, gradients=[[7, 1.0]], backwards=[backward(MEAN, loss=loss)], calls=[SUM])]
        for loss in (1.0, 2.0)
    ]
    check(tmp_path, "sums", sums, ("likely", 2, (0,), 5))
    two = held({"shape": [3]}, {})
    check(
        tmp_path,
        "changes",
        [[two, *[moved(n, (1.0, 5, 5), (1.0, 5, 5)) for n in (1, 2)]]],
        ("likely", 1, (0,), 7, "w1"),
    )
    second = [moved(n, (1.0, n, n + 1), (None, 5, 5)) for n in (1, 2, 3)]
    check(tmp_path, "unused", [[TWO, *second[:1]], [TWO, *second]], ("possible", 1, (1,), 3))
    check(tmp_path, "twice", [
        [W, *loaded([1], [2], every=3), step(1)],
        [W, *loaded([1], [2], every=3, distributed=True, padded=True, samples=3), step(1)],
    ], ("possible", None, (1,), 4))  # fmt: skip


def halved(times: int) -> dict[str, Any]:
    graph = [["DivBackward0", None, None, 2.0]] * times
    return micro(*graph, MEAN)


def test_loss_that_is_divided_twice_by_the_micro_batches(tmp_path: Path) -> None:
    check(tmp_path, "accumulation", [[W, halved(1)]], None)
    check(tmp_path, "accumulation", [[W, halved(2)]], ("possible", 1, (0,), 8, "2 micro-batches by 2 twice"))
    in_three = {**halved(2), "backwards": [*halved(2)["backwards"], halved(2)["backwards"][-1]]}
    check(tmp_path, "accumulation", [[W, in_three]], None)  # by 2, not by 3


@pytest.mark.parametrize(("untouched", "expected"), [(True, ("likely", 1, (0,), 8)), (False, None)])
def test_clipping_does_not_hide_micro_batches_that_are_added(tmp_path: Path, untouched: bool, expected: Any) -> None:
    clip = called("clip", norm=2.0, limit=1.0, untouched=untouched)
    check(tmp_path, "accumulation", [[W, {**micro(MEAN, bits=[6]), "calls": [clip]}]], expected)


def test_micro_batch_clipped_by_the_norm_of_a_rank(tmp_path: Path) -> None:
    ranks = []
    for norm in (2.0, 3.0):
        calls = [called("clip", norm=norm, limit=1.0, line=at(6))]
        ranks.append([DDP, held({}), {**micro(MEAN), "calls": calls}])
    check(tmp_path, "clipping", ranks, ("likely", 1, (0, 1), 6, "before they are averaged"))


def test_samples_that_are_split_twice(tmp_path: Path) -> None:
    loader = {"kind": "loader", "loader": 0, "iteration": 0, "line": at(4), "split_again": True}
    expected = ("likely", 1, (0,), 4, "split among the ranks twice", "only 1 of 2 samples")
    check(tmp_path, "samples", [[W, loader, step(1)]] * 2, expected)


def test_layers_that_are_no_part_of_the_model(tmp_path: Path) -> None:
    stranger = {"module": 0, "name": "weight of a Linear", "made": at(2), "stranger": True}
    expected = ("likely", 1, (0,), 2, "calls layers that are no part of it (weight of a Linear)")
    check(tmp_path, "optimizer", [[W, step(1), end(1, outside=[stranger])]], expected)


def test_schedule_that_ends_early_names_the_line_that_made_it(tmp_path: Path) -> None:
    steps = [step(number, lr=[0.1 if number < 3 else 0.0]) for number in range(1, 9)]
    check(tmp_path, "schedule", [[held({}, schedule=at(4)), *steps]], ("likely", 3, (0,), 4))


def test_model_that_is_never_in_training_mode(tmp_path: Path) -> None:
    steps = [step(number, forwards=[EVALUATES]) for number in (1, 2, 3)]
    check(tmp_path, "training-mode", [[W, *steps]], ("possible", 1, (0,), 6, "in evaluation mode in all steps"))
    check(tmp_path, "training-mode", [[W, *steps[:2]]], None)


def model(**changes: Any) -> dict[str, Any]:
    return {"kind": "module", "module": 0, "class": "Llama", **changes}


@pytest.mark.parametrize("held_by", [0, 1])
def test_head_that_the_configuration_ties_is_a_tensor_of_its_own(tmp_path: Path, held_by: int) -> None:
    lines = [model(untied=["lm_head.weight", at(2)]), held({"module": held_by}), step(1)]
    expected = ("likely", 1, (0,), 2, "lm_head.weight is a tensor of its own")
    check(tmp_path, "tied", [lines], expected if held_by == 0 else NOT_TIED)


@pytest.mark.parametrize(
    ("adapters", "held_by", "expected"),
    [([4, 0], 0, ("likely", 1, (0,), 7, "all 4 tensors")), ([4, 2], 0, None), ([0, 0], 0, None), ([4, 0], 1, None)],
)
def test_adapters_that_are_all_frozen(tmp_path: Path, adapters: list[int], held_by: int, expected: Any) -> None:
    check(tmp_path, "frozen", [[model(adapters=adapters), held({"module": held_by}), step(1)]], expected)


def test_line_of_half_precision_and_of_a_loader_that_a_library_reads(tmp_path: Path) -> None:
    halves = [{"dtype": "bfloat16"}]
    states = step(1, state=[["bfloat16"]])
    check(tmp_path, "state-type", [[held(*halves, lowered=at(9)), states]], ("possible", 1, (0,), 9))
    loader = {"kind": "loader", "loader": 0, "iteration": 0, "line": at(4), "made": at(2), "split_again": True}
    check(tmp_path / "loader", "samples", [[W, loader, step(1)]] * 2, ("likely", 1, (0,), 2))


@pytest.mark.parametrize(
    ("gathered", "fills_up", "expected"),
    [
        (
            ("gather",),
            True,
            ("possible", None, (0,), 9, "until all ranks have equal batches, and `gather` at train.py:9"),
        ),
        (("gather", "gather_for_metrics"), True, None),
        ((), True, None),
        (("gather",), False, None),
    ],
)
def test_samples_that_accelerate_repeats_are_gathered(
    tmp_path: Path, gathered: tuple[str, ...], fills_up: bool, expected: Any
) -> None:
    calls = [called(name, line=at(9)) for name in gathered]
    lines = [W, *loaded([1], [2], [3], every=3, fills_up=fills_up), step(1, calls=calls)]
    check(tmp_path, "twice", [lines], expected)


@pytest.mark.parametrize(
    ("whole", "expected"), [([4, 4], None), ([8, 4], ("likely", 1, (0, 1), 6)), ([], ("likely", 1, (0, 1), 6))]
)
def test_norms_of_whole_models_that_train_apart_may_differ(tmp_path: Path, whole: list[int], expected: Any) -> None:
    table = {"ddp": None, "constant": True, "whole": whole, "offset": [0, 0]}
    lines = [clipped(2.0), clipped(3.0)]
    ranks = [[held({"names": [f"of rank {rank}"], **table}), line] for rank, line in enumerate(lines)]
    check(tmp_path, "clipping", ranks, expected)


def test_line_that_chose_what_is_trained_is_named(tmp_path: Path) -> None:
    frozen = model(adapters=[4, 0], adapters_selected=at(9))
    check(tmp_path, "frozen", [[frozen, held({}), step(1)]], ("likely", 1, (0,), 9))
    chosen = held({}, {"selected": at(9)})
    check(tmp_path / "unused", "unused", [[chosen, *SECOND_WITHOUT]], ("possible", 1, (0,), 9))


@pytest.mark.parametrize(("seed", "line"), [(6, 2), (5, 3)])
def test_seeds_of_the_ranks_explain_weights_that_differ(tmp_path: Path, seed: int, line: int) -> None:
    ranks = [[held({"seed": [each, at(2)]}), one(1, before, 6)] for each, before in ((5, 5), (seed, 4))]
    check(tmp_path, "weights-start", ranks, ("certain", 1, (0, 1), line))
