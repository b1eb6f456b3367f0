"""Bits notice every change, and numbers that stand for tensors are those of each alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frog.observe.hook.frog_observer.checks import fingerprints, gradient_parts

SIZES = (0, 1, 7, 320, 4096, 4097, 65_536, 200_001)
KINDS = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.bool)


def patterns(tensor: torch.Tensor) -> np.ndarray:
    """Return the bit patterns of a tensor's numbers."""
    flat = torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found: np.ndarray = flat.view(kinds[flat.element_size()]).numpy()
    return found


def test_bits_and_norms_are_those_of_each_tensor_whatever_is_beside_it() -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(size, generator=generator).to(kind) for size in SIZES for kind in KINDS]
    found = fingerprints.bits_and_norms([None, *tensors, torch.ones(3, device="meta"), torch.tensor(-2.0)])
    assert found[0] is None
    assert found[-2:] == [None, [int(np.float32(-2).view(np.int32)), 2.0]]
    for tensor, both in zip(tensors, found[1:-2], strict=True):
        assert both is not None
        whole = sum(patterns(tensor).tolist())
        assert both[0] == (whole + 2**63) % 2**64 - 2**63
        wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
        assert both[1] == pytest.approx(float(torch.linalg.vector_norm(wide)), rel=1e-13)
    assert fingerprints.bits_of(tensors) == [each[0] for each in found[1:-2] if each is not None]
    assert [fingerprints.bits(each) for each in tensors] == fingerprints.bits_of(tensors)


@pytest.mark.parametrize("size", [5, 100_000])
def test_tensor_with_a_nan_has_no_norm(size: int) -> None:
    values = torch.ones(size)
    values[3] = float("nan")
    (first, second) = fingerprints.bits_and_norms([values, torch.ones(size)])
    assert first is not None
    assert second is not None
    assert (first[1], second[1]) == (None, pytest.approx(size**0.5))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 12_000), min_size=1, max_size=6), st.sampled_from([torch.float32, torch.bfloat16]))
def test_bits_of_shards_add_up_to_those_of_the_whole(sizes: list[int], dtype: torch.dtype) -> None:
    whole = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(len(sizes))).to(dtype)
    assert fingerprints.bits(whole) == sum(fingerprints.bits(each) for each in whole.split(sizes))


def test_parts_are_dot_products_with_the_vector() -> None:
    generator = torch.Generator().manual_seed(4)
    samples = [torch.randn(size, generator=generator) for size in (10, 3, 10, 1, 2048)]
    across = fingerprints.vector(torch.device("cpu"))[0]
    for sample, parts in zip(samples, fingerprints.parts_of(samples), strict=True):
        products = sample.double() * across[: len(sample)]
        assert parts == pytest.approx([float(part.sum()) for part in products.tensor_split(4)], abs=1e-12)
    assert fingerprints.parts_of([]) == []


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.complex64]
)
def test_bits_notice_one_unit_in_the_last_place_and_no_order(dtype: torch.dtype) -> None:
    values = (torch.randn(999, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 100).to(dtype)
    same = values.flip(0)
    assert fingerprints.bits(values) == fingerprints.bits(same)
    raw = values.view(torch.int32) if dtype == torch.complex64 else values
    if raw.dtype.is_floating_point:
        raw = raw.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[raw.element_size()])
    raw[17] += 1
    assert fingerprints.bits(values) != fingerprints.bits(same)


def test_fingerprints_take_any_layout() -> None:
    values = torch.arange(12.0).reshape(3, 4)
    across = values.t().contiguous().t()
    assert fingerprints.bits(values) == fingerprints.bits(across)
    assert fingerprints.bits_and_norms([values]) == fingerprints.bits_and_norms([across])
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (4,), check_invariants=True)
    assert fingerprints.bits(sparse) == fingerprints.bits(torch.tensor([1.0, 2.0]))
    assert fingerprints.bits(torch.tensor([True, False, True])) == 2


def test_nothing_draws_from_the_programs_random_numbers() -> None:
    before = torch.get_rng_state()
    fingerprints._vectors.clear()
    fingerprints.parts_of([torch.ones(10)])
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


def test_digits_tell_in_which_type_gradients_were() -> None:
    net = torch.nn.Linear(40, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        for each in net.parameters():
            each.grad = torch.randn_like(each).to(kind).float()
        found.append(gradient_parts.digits_of(optimizer))
    assert found == [None, "bfloat16", "float16"]
    net.weight.grad = None  # four elements may have few digits by chance
    assert gradient_parts.digits_of(optimizer) is None
