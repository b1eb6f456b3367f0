"""Sketches of shards add up to that of the whole, within the bound, and bits notice every change."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frog.observe.hook.frog_observer.checks import fingerprints

WIDTH, ROWS = fingerprints._WIDTH, fingerprints._ROWS


def vector(first: int, count: int) -> np.ndarray:
    """Return the pseudo-random numbers of some places, element by element."""
    across, down = (part.numpy() for part in fingerprints.vector(torch.device("cpu")))
    places = np.arange(first, first + count)
    return across[places % WIDTH] * down[places // WIDTH % ROWS]


@pytest.mark.parametrize("first", [0, 1, WIDTH - 1, 3 * WIDTH, ROWS * WIDTH - 5])
@pytest.mark.parametrize("count", [0, 1, 7, WIDTH, 2 * WIDTH + 9, 40_000])
def test_sketch_is_the_dot_product_with_the_vector(first: int, count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    sketch, square = fingerprints.sketch_and_norm(values, first)
    expected = math.fsum(values.numpy() * vector(first, count))
    assert abs(float(sketch) - expected) <= fingerprints.sketch_error(count, float(square) ** 0.5)
    assert float(square) == pytest.approx(float((values**2).sum()), rel=1e-12)


@given(st.lists(st.integers(1, 3 * WIDTH), min_size=1, max_size=6), st.sampled_from([torch.float32, torch.bfloat16]))
def test_sketches_of_shards_add_up_to_that_of_the_whole(sizes: list[int], dtype: torch.dtype) -> None:
    whole = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(len(sizes))).to(dtype)
    sketch, square = fingerprints.sketch_and_norm(whole)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    parts = [
        fingerprints.sketch_and_norm(whole[start : start + size], start)
        for start, size in zip(starts, sizes, strict=True)
    ]
    bound = 2 * fingerprints.sketch_error(len(whole), float(square) ** 0.5)
    assert abs(float(sum(part for part, _ in parts)) - float(sketch)) <= bound
    assert float(sum(part for _, part in parts)) == pytest.approx(float(square))
    assert int(fingerprints.bits(whole)) == sum(
        int(fingerprints.bits(whole[start : start + size])) for start, size in zip(starts, sizes, strict=True)
    )


def test_error_bound_is_far_below_a_difference_in_float32() -> None:
    values = torch.randn(1_000_000, generator=torch.Generator().manual_seed(1))
    sketch, square = fingerprints.sketch_and_norm(values)
    other, _ = fingerprints.sketch_and_norm(values * (1 + 2.0**-22))
    assert abs(float(other) - float(sketch)) > 0
    assert fingerprints.sketch_error(values.numel(), float(square) ** 0.5) < 1e-3 * float(square) ** 0.5


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.complex64]
)
def test_bits_notice_one_unit_in_the_last_place_and_no_order(dtype: torch.dtype) -> None:
    values = (torch.randn(999, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 100).to(dtype)
    same = values.flip(0)
    assert int(fingerprints.bits(values)) == int(fingerprints.bits(same))
    raw = values.view(torch.int32) if dtype == torch.complex64 else values
    if raw.dtype.is_floating_point:
        raw = raw.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[raw.element_size()])
    raw[17] += 1
    assert int(fingerprints.bits(values)) != int(fingerprints.bits(same))


def test_fingerprints_take_any_layout() -> None:
    values = torch.arange(12.0).reshape(3, 4)
    across = values.t().contiguous().t()
    assert int(fingerprints.bits(values)) == int(fingerprints.bits(across))
    assert fingerprints.sketch_and_norm(values) == fingerprints.sketch_and_norm(across)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (4,), check_invariants=True)
    assert int(fingerprints.bits(sparse)) == int(fingerprints.bits(torch.tensor([1.0, 2.0])))
    assert int(fingerprints.bits(torch.tensor([True, False, True]))) == 2


def test_nothing_draws_from_the_programs_random_numbers() -> None:
    before = torch.get_rng_state()
    fingerprints._vectors.clear()
    fingerprints.sketch_and_norm(torch.ones(10))
    fingerprints.rows(torch.ones(10, 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_are_equal_for_equal_samples_in_any_batch() -> None:
    data = torch.randint(0, 50, (20, 33), generator=torch.Generator().manual_seed(3))
    labels = torch.arange(20)
    rows = fingerprints.rows([data, {"labels": labels}])
    assert rows is not None
    assert len(set(rows)) == 20
    assert fingerprints.rows((data[5:9], {"labels": labels[5:9]})) == rows[5:9]
    assert fingerprints.rows([data.flip(0), {"labels": labels.flip(0)}]) == rows[::-1]
    changed = data.clone()
    changed[3, 0], changed[3, 1] = data[3, 1] + 1, data[3, 0]
    other = fingerprints.rows([changed, {"labels": labels}])
    assert other is not None
    assert [one == two for one, two in zip(rows, other, strict=True)].count(False) == 1


def test_rows_leave_out_what_has_no_samples() -> None:
    assert fingerprints.rows(["text", 3, {}]) is None
    assert fingerprints.rows(torch.tensor(1.0)) is None
    assert fingerprints.rows(torch.ones(2, 2, requires_grad=True)) is None


def test_samples_are_evenly_spaced() -> None:
    values = torch.arange(10_000)
    found = fingerprints.sampled(values)
    assert 1024 < len(found) <= fingerprints.MOST_SAMPLED
    assert found[1] - found[0] == found[-1] - found[-2]
    assert torch.equal(fingerprints.sampled(values[:5]), values[:5])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_finite_is_told_from_overflow(dtype: torch.dtype) -> None:
    large = torch.full((10,), torch.finfo(dtype).max, dtype=dtype)
    assert fingerprints.is_finite(large)
    for bad in (float("nan"), float("inf"), float("-inf")):
        assert not fingerprints.is_finite(torch.cat([large, torch.tensor([bad], dtype=dtype)]))
    assert not fingerprints.is_finite(torch.tensor([float("inf"), float("-inf")], dtype=dtype))
