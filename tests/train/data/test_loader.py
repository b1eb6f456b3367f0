"""The loader: each rank's slice of the same samples for any world; prefetching; clean shutdown."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from harness import LIMIT_S

from frog.core.errors import ShapeError
from frog.train.data import Batch, Loader, PreparedData, Windows, sample_ids

T = 16
GLOBAL = 8


@pytest.fixture
def windows(data: PreparedData) -> Windows:
    return Windows(data.split("train"), T)


def batches(windows: Windows, num_steps: int, **options: Any) -> list[Batch]:
    options = {"seed": 3, "global_batch_size": GLOBAL, "dp_rank": 0, "dp_size": 1, "grad_accum": 1, **options}
    with Loader(windows, **options) as loader:
        return list(islice(loader, num_steps))


def test_labels_are_the_next_tokens_of_the_samples(windows: Windows) -> None:
    for batch in batches(windows, 5, grad_accum=2):
        assert batch.tokens_ABT.shape == batch.labels_ABT.shape == (2, 4, T)
        assert batch.tokens_ABT.dtype == batch.labels_ABT.dtype == torch.int64
        assert batch.tokens_ABT.is_contiguous()
        assert batch.labels_ABT.is_contiguous()
        wanted = windows.gather(sample_ids(3, batch.step, GLOBAL, len(windows)))
        np.testing.assert_array_equal(batch.tokens_ABT.reshape(GLOBAL, T).numpy(), wanted[:, :-1])
        np.testing.assert_array_equal(batch.labels_ABT.reshape(GLOBAL, T).numpy(), wanted[:, 1:])


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_slices_of_all_ranks_form_the_global_batch(windows: Windows, world_size: int) -> None:
    alone = batches(windows, 4)
    ranks = [batches(windows, 4, dp_rank=rank, dp_size=world_size) for rank in range(world_size)]
    for step, whole in enumerate(alone):
        assert [rank[step].step for rank in ranks] == [step + 1] * world_size
        np.testing.assert_array_equal(np.concatenate([rank[step].ids_N for rank in ranks]), whole.ids_N)
        assert torch.equal(torch.cat([rank[step].tokens_ABT for rank in ranks], dim=1), whole.tokens_ABT)
        assert torch.equal(torch.cat([rank[step].labels_ABT for rank in ranks], dim=1), whole.labels_ABT)


def test_micro_batches_of_one_rank_equal_batches_of_four_ranks(windows: Windows) -> None:
    accumulated = batches(windows, 3, grad_accum=4)
    ranks = [batches(windows, 3, dp_rank=rank, dp_size=4) for rank in range(4)]
    for step, batch in enumerate(accumulated):
        for micro in range(4):
            assert torch.equal(batch.tokens_ABT[micro], ranks[micro][step].tokens_ABT[0])


@pytest.mark.parametrize("start_step", [1, 7, 511, 512, 513, 1000])
def test_loader_resumes_at_any_step(windows: Windows, start_step: int) -> None:
    """Any step, including one at the start of a block of sample ids, and one in another epoch."""
    assert start_step * GLOBAL > len(windows) or start_step < 100
    for batch, step in zip(
        batches(windows, 3, start_step=start_step), range(start_step + 1, start_step + 4), strict=True
    ):
        assert batch.step == step
        np.testing.assert_array_equal(batch.ids_N, sample_ids(3, step, GLOBAL, len(windows)))


def test_loader_crosses_blocks_of_sample_ids(windows: Windows) -> None:
    for batch in batches(windows, 520, global_batch_size=16):
        np.testing.assert_array_equal(batch.ids_N, sample_ids(3, batch.step, 16, len(windows)))


def test_loader_prefetches_a_bounded_number_of_batches(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    made, third = [], threading.Event()
    gather = Windows.gather

    def counted(self: Windows, ids_N: np.ndarray) -> np.ndarray:
        made.append(1)
        if len(made) == 3:
            third.set()
        return gather(self, ids_N)

    monkeypatch.setattr(Windows, "gather", counted)
    with Loader(windows, seed=3, global_batch_size=8, dp_rank=0, dp_size=1, grad_accum=1, prefetch=2) as loader:
        assert third.wait(timeout=LIMIT_S), "two batches wait in the queue, and a third for room in it"
        assert len(made) == 3
        assert next(loader).step == 1


def test_loader_thread_error_is_raised_by_next(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    gather, calls = Windows.gather, []

    def failing(self: Windows, ids_N: np.ndarray) -> np.ndarray:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(5, "the disk is gone")
        return gather(self, ids_N)

    monkeypatch.setattr(Windows, "gather", failing)
    loader = Loader(windows, seed=3, global_batch_size=8, dp_rank=0, dp_size=1, grad_accum=1)
    assert [next(loader).step, next(loader).step] == [1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(loader)
    with pytest.raises(StopIteration):
        next(loader)
    assert not loader._thread.is_alive()


def test_close_always_ends_the_loader_thread(windows: Windows) -> None:
    before = threading.active_count()
    for num_steps in (0, 1, 5):
        loader = Loader(windows, seed=3, global_batch_size=8, dp_rank=0, dp_size=1, grad_accum=1, prefetch=1)
        for _ in range(num_steps):
            next(loader)
        loader.close()
        loader.close()
        assert list(loader) == []
    assert threading.active_count() == before


def test_indivisible_global_batch_raises_shape_error(windows: Windows) -> None:
    with pytest.raises(ShapeError, match=r"global_batch_size=8 .* dp 3 x train.grad_accum 2 = 6"):
        batches(windows, 1, dp_size=3, grad_accum=2)
    with pytest.raises(ShapeError, match="dp_rank=2 is outside dp_size=2"):
        batches(windows, 1, dp_rank=2, dp_size=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_batches_arrive_on_the_gpu(windows: Windows) -> None:
    for there, here in zip(batches(windows, 20, device=torch.device("cuda")), batches(windows, 20), strict=True):
        assert there.tokens_ABT.is_cuda
        assert torch.equal(there.tokens_ABT.cpu(), here.tokens_ABT)
        assert torch.equal(there.labels_ABT.cpu(), here.labels_ABT)
