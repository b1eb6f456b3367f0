"""Ranks that are started again find each other, in a store that still holds what those before them wrote."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from frog.comm.attempt_store import attempt_name


def test_each_attempt_has_a_name_of_its_own_whoever_comes_first() -> None:
    store, names = HashStore(), set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        with ThreadPoolExecutor(3) as ranks:
            found = list(ranks.map(lambda rank: attempt_name(store, rank, 3, 60), order))
        assert len(set(found)) == 1, found
        names |= set(found)
    assert len(names) == 3


def test_who_is_missing_is_counted() -> None:
    store = HashStore()
    store.set("asks 1", "of an attempt before")
    with pytest.raises(RuntimeError, match=r"2 of 3 ranks did not arrive within 0\.1 s"):
        attempt_name(store, 0, 3, 0.1)
