"""Sums over ranks in half precision, on records whose numbers were rounded here as the ranks would round them."""

from __future__ import annotations

import math
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from check_records import LINE, step, table, write

from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.rank_records import read_records
from frog.observe.check.reduction_checks import half_sums

Vector = list[float]
NUM_PARAMETERS, NUM_ELEMENTS = 12, 64
FLOAT32, BFLOAT16, FLOAT16 = 24, 8, 11
NOTHING = "no sum of gradients over ranks was seen"


def rounded(number: float, digits: int) -> float:
    """Return a number with so many binary digits."""
    share, exponent = math.frexp(number)
    return math.ldexp(round(share * 2**digits), exponent - digits)


def ring(terms: Vector, digits: int) -> float:
    """Return the mean of the ranks' numbers, added one after the other, each sum rounded."""
    own = [rounded(each, digits) for each in terms]
    return list(accumulate(own, lambda one, other: rounded(one + other, digits)))[-1] / len(terms)


def parts(numbers: Vector, across: Vector) -> Vector:
    products = [one * other for one, other in zip(numbers, across, strict=True)]
    return [math.fsum(products[start : start + NUM_ELEMENTS // 4]) for start in range(0, NUM_ELEMENTS, 16)]


def ranks_of(world: int, digits: int, spread: float = 1.0, clip: float = 1.0) -> list[dict[str, Any]]:
    """Return a step of each rank. spread: how far ranks are apart, in pairs, besides what they have in common."""
    draw = random.Random(5)
    used, brought = {}, [{} for _ in range(world)]  # type: ignore[var-annotated]
    for place in range(NUM_PARAMETERS):
        across = [draw.uniform(-1, 1) for _ in range(NUM_ELEMENTS)]
        same = [draw.gauss(0, 1) for _ in range(NUM_ELEMENTS)]
        away = [[draw.gauss(0, spread) for _ in range(NUM_ELEMENTS)] for _ in range(world // 2)]
        own = [
            [
                each + (-1) ** (rank >= world // 2) * far
                for each, far in zip(same, away[rank % (world // 2)], strict=True)
            ]
            for rank in range(world)
        ]
        mean = [ring(list(each), digits) for each in zip(*own, strict=True)]
        used[place] = [clip * each for each in parts(mean, across)]
        for rank in range(world):
            brought[rank][place] = parts(own[rank], across)
    return [
        step(1, parts=used, backwards=[{"line": LINE, "loss": 1.0 + rank, "brought": {"0": each}}])
        for rank, each in enumerate(brought)
    ]


def held(world: int, dtype: str = "float32", **changes: Any) -> dict[str, Any]:
    """Return the table of an optimizer with all parameters in DDP."""
    (parameter,) = table(dtype=dtype, ddp=list(range(world)))["parameters"]
    return {**table(), "parameters": [{**parameter, "names": [f"w{n}"]} for n in range(NUM_PARAMETERS)], **changes}


def look(folder: Path, steps: list[dict[str, Any]], *lines: dict[str, Any]) -> Any:
    """Return how sure the rule is that something is wrong, with the sentence and the line; None if nothing is."""
    for rank, each in enumerate(steps):
        write(folder, rank, [*lines, each])
    try:
        found = half_sums(Comparison(read_records(folder)))
    except NotObservable as error:
        return str(error)
    return found and (found.sure, found.finding, found.line and found.line.line)


def with_calls(steps: list[dict[str, Any]], call: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**each, "calls": [{"line": ["/home/one/train.py", 4, "main"], **call}]} for each in steps]


HOOK = {"call": "comm_hook", "op": " bf16_compress_hook"}


@pytest.mark.parametrize(
    ("world", "dtype", "digits", "spread", "sure"),
    [
        (2, "bfloat16", BFLOAT16, 1.0, None),  # one rounding, as the gradient itself has
        (4, "bfloat16", BFLOAT16, 1.0, None),
        (8, "bfloat16", BFLOAT16, 1.0, None),
        (4, "bfloat16", BFLOAT16, 30.0, "possible"),  # ranks that cancel lose digits on few ranks too
        (8, "bfloat16", BFLOAT16, 30.0, "likely"),
        (8, "float16", FLOAT16, 30.0, "likely"),
        (8, "bfloat16", FLOAT32, 30.0, None),  # the wrapper has added in float32
        (8, "float32", FLOAT32, 30.0, None),
    ],
)
def test_weights_in_half_are_added_in_half(
    tmp_path: Path, world: int, dtype: str, digits: int, spread: float, sure: str | None
) -> None:
    lowered = ["/home/one/train.py", 3, "main"]
    found = look(tmp_path, ranks_of(world, digits, spread), held(world, dtype, lowered=lowered))
    assert (found and found[0]) == sure
    assert found is None or (f"over {world} ranks in {dtype}, by DDP" in found[1] and found[2] == 3)


@pytest.mark.parametrize("clip", [1.0, 0.3])
def test_hook_that_adds_floats_in_half_is_named_with_what_it_lost(tmp_path: Path, clip: float) -> None:
    steps = with_calls(ranks_of(2, BFLOAT16, clip=clip), HOOK)
    sure, finding, line = look(tmp_path, steps, held(2))
    assert (sure, line) == ("possible", 4)
    assert "by the hook of DDP that train.py:4 (main) sets: they are 0." in finding


def test_hook_that_loses_nothing_is_not_accused(tmp_path: Path) -> None:
    assert look(tmp_path, with_calls(ranks_of(4, FLOAT32), HOOK), held(4)) is None


def test_gradient_that_no_rounding_explains_is_not_measured(tmp_path: Path) -> None:
    steps = ranks_of(8, BFLOAT16)
    for each in steps:
        each["parts"] = {place: [1.0, -2.0, 3.0, 0.5] for place in range(NUM_PARAMETERS)}
    assert look(tmp_path, steps, held(8, "bfloat16"))[1].endswith("since the weights have this type")


@pytest.mark.parametrize(("digits", "sure"), [(BFLOAT16, "possible"), (FLOAT32, None), (1, None)])
def test_hook_without_a_telling_name_is_found_by_its_digits(tmp_path: Path, digits: int, sure: str | None) -> None:
    """Gradients of one digit are no rounding to bfloat16, so they prove nothing about it."""
    steps = with_calls(ranks_of(4, digits), {"call": "comm_hook", "op": "send"})
    for each in steps:
        each["backwards"][0]["digits"] = {"0": "bfloat16"}
    found = look(tmp_path, steps, held(4))
    assert (found and (found[0], found[2])) == (sure and (sure, 4))


@pytest.mark.parametrize(
    ("reduction", "sure"),
    [
        (None, NOTHING),
        (["float32", "bfloat16", 8], None),
        (["bfloat16", "bfloat16", 4], None),
        (["bfloat16", "bfloat16", 8], "possible"),
        (["bfloat16", "float32", 2], "possible"),
        (["bfloat16", "float32", 1], None),
        (["bfloat16", "bfloat16", 256], "likely"),  # terms of equal size count no more
        (["float16", "float16", 256], "possible"),
    ],
)
def test_type_in_which_a_wrapper_reduces(tmp_path: Path, reduction: Any, sure: str | None) -> None:
    module = {
        "kind": "module",
        "module": 0,
        "class": "FSDPNet",
        "wrapper": reduction and "fsdp2",
        "reduction": reduction,
    }
    own = table(ddp=None, made=["/home/one/train.py", 5, "main"])
    found = look(tmp_path, [step(1, backwards=[]) for _ in range(2)], module, own)
    assert (found[0], found[2]) == (sure, 5) if isinstance(found, tuple) else found == sure


SUM = {"call": "all_reduce", "dtype": "bfloat16", "elements": 64, "op": "SUM", "after_backward": True}


@pytest.mark.parametrize(
    ("changes", "sure"),
    [
        ({}, "possible"),
        ({"op": None}, "possible"),
        ({"op": "MAX"}, None),
        ({"dtype": "float32"}, None),
        ({"elements": 63}, None),
        ({"after_backward": False}, None),  # activations of tensor parallelism
    ],
)
def test_sum_that_the_program_calls(tmp_path: Path, changes: dict[str, Any], sure: str | None) -> None:
    steps = [step(1, backwards=[]) for _ in range(2)]
    found = look(tmp_path, with_calls(steps, {**SUM, **changes}), table(ddp=None))
    assert (found and (found[0], found[2])) == (sure and (sure, 4))
