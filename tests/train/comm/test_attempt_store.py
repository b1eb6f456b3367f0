"""Restarted ranks find each other in a store that still contains entries of earlier ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from frog.train.comm.attempt_store import attempt_name


def test_each_attempt_has_its_own_name_in_any_order_of_arrival() -> None:
    store, names = HashStore(), set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        with ThreadPoolExecutor(3) as ranks:
            found = list(ranks.map(lambda rank: attempt_name(store, rank, 3, 60), order))
        assert len(set(found)) == 1, found
        names |= set(found)
    assert len(names) == 3


def test_missing_ranks_are_counted() -> None:
    store = HashStore()
    store.set("asks 1", "of an attempt before")
    with pytest.raises(RuntimeError, match=r"2 of 3 ranks did not arrive within 0\.1 s"):
        attempt_name(store, 0, 3, 0.1)
