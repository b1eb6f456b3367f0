"""Batches that are loaded while the model computes."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any


class prefetch:
    def __init__(self, load, num_batches, depth):
        self.load, self.num, self.depth = load, num_batches, depth
        self.ready, self.taken, self.closed = [], 0, False
        self.changed = threading.Condition()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        for i in range(self.num):
            with self.changed:
                self.changed.wait_for(lambda: self.closed or len(self.ready) < self.depth)
                if self.closed:
                    return
            try:
                item = (True, self.load(i))
            except Exception as error:
                item = (False, error)
            with self.changed:
                self.ready.append(item)
                self.changed.notify_all()
                if not item[0]:
                    return

    def __iter__(self):
        return self

    def __next__(self):
        if self.taken == self.num or self.closed:
            raise StopIteration
        with self.changed:
            self.changed.wait_for(lambda: self.ready)
            good, value = self.ready.pop(0)
            self.changed.notify_all()
        self.taken += 1
        if good:
            return value
        self.close()
        raise value

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()
