"""Batches that are loaded while the model computes."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any


def prefetch(load: Callable[[int], Any], num_batches: int, depth: int) -> Iterator[Any]:
    """Yield load(0), load(1), … load(num_batches - 1), and load the next ones meanwhile.

    load:   returns a batch, of any kind; None is a batch too. It may be called from one thread at a time, and raises
            if a batch cannot be read.
    depth:  1 or more: while the caller works with a batch, the next `depth` are loaded, in another thread, and wait.
            Never more than that, but for one that has been loaded and finds no room.

    An error of load(i) is raised where batch i would have come. The result is a generator, or an object like one: after
    its `close()` nothing more is loaded, and the thread has ended or ends soon.
    """
    room: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
    closed = threading.Event()

    def put(item: tuple[Any, BaseException | None]) -> None:
        while not closed.is_set():
            try:
                return room.put(item, timeout=0.05)
            except queue.Full:
                continue

    def run() -> None:
        for i in range(num_batches):
            if closed.is_set():
                return
            try:
                item = (load(i), None)
            except BaseException as error:
                return put((None, error))
            put(item)

    for _ in range(2):
        threading.Thread(target=run, daemon=True).start()
    try:
        for _ in range(num_batches):
            batch, error = room.get()
            if error is not None:
                raise error
            yield batch
    finally:
        closed.set()
