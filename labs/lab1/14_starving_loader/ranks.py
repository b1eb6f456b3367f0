"""Count loads, for a caller that holds each batch until the loads that should run meanwhile have run."""

import queue
import threading
import time
from types import ModuleType
from typing import Any

MOST_LOOKS = 12
"""Batches that the caller holds until the next ones have been loaded."""
SLOW = 2
"""Index of a batch that loads slowly."""
PATIENCE_S = 3.0
"""Seconds to wait for something that a right solution does immediately."""
SETTLE_S = 0.1
"""Seconds to wait for something that a right solution never does, or does not have to do."""
CALLER = "caller"
"""The name of each thread that asks for a batch."""


class ShardError(Exception):
    """A batch cannot be read."""


class Loads:
    """The function `load`, with a record of its calls."""

    def __init__(self, fails_at: int | None = None, empty_at: int | None = None) -> None:
        self.fails_at, self.empty_at = fails_at, empty_at
        self.begun: list[int] = []
        self.first_taken = threading.Event()
        self.is_first_held = False
        """True if load(1) was called, and batch 0 was delivered only after it had returned."""
        self.active = self.most_active = self.in_caller = 0
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        """Return the thread of the last load that began."""

    def __call__(self, i: int) -> Any:
        with self.changed:
            self.begun.append(i)
            self.thread = threading.current_thread()
            self.in_caller += self.thread.name == CALLER
            self.active += 1
            self.most_active = max(self.most_active, self.active)
            self.changed.notify_all()
        if i >= 1 and not self.is_first_held:
            self.is_first_held = not self.first_taken.wait(PATIENCE_S / 2)
        time.sleep(0.1 if i == SLOW else 0.002)  # so that two concurrent loads are noticed
        with self.changed:
            self.active -= 1
            self.changed.notify_all()
        if i == self.fails_at:
            raise ShardError(f"shard {i} cannot be read")
        return None if i == self.empty_at else [i]

    def wait_for(self, count: int) -> bool:
        """Wait until `count` loads have begun and none is active; return True if that happened in time."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self.begun) >= count and not self.active, PATIENCE_S)

    def exceed(self, allowed: int, num: int) -> bool:
        """True if more loads begin than are allowed; then all following ones have begun too."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.begun) > allowed, SETTLE_S):
                return False
            self.changed.wait_for(lambda: len(self.begun) >= num, PATIENCE_S / 2)
        return True

    def wait_for_thread(self) -> None:
        """Wait until the loading thread has ended, if it ends; a pool keeps its threads."""
        if self.thread is not None and self.thread.name != CALLER:
            self.thread.join(2 * SETTLE_S)


def next_of(batches: Any) -> tuple[str, Any]:
    """Return the next batch as ("batch", …), or ("end", None), ("error", its text), ("hangs", None)."""
    answers: queue.Queue[tuple[str, Any]] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(("batch", next(batches)))
        except StopIteration:
            answers.put(("end", None))
        except Exception as error:
            answers.put(("error", f"{type(error).__name__}: {error}"))

    threading.Thread(target=ask, name=CALLER, daemon=True).start()
    try:
        return answers.get(timeout=PATIENCE_S)
    except queue.Empty:
        return "hangs", None


def run_all(learner: ModuleType, loads: Loads, num: int, depth: int, look: bool = False) -> dict[str, Any]:
    """Take batches until the end or an error."""
    batches, seen, ahead, stopped = iter(learner.prefetch(loads, num, depth)), [], [], False
    good = num if loads.fails_at is None else loads.fails_at
    last = min(num, good + 1)
    while len(seen) < num + 2 and not stopped:
        what, value = next_of(batches)
        seen.append([what, value])
        loads.first_taken.set()
        if what != "batch":
            stopped = what == "hangs"
            break
        stopped = loads.is_first_held
        if look and not stopped and len(seen) <= MOST_LOOKS:
            stopped = not loads.wait_for(min(last, len(seen) + depth))
            if not stopped and len(seen) in (1, MOST_LOOKS):
                stopped = loads.exceed(len(seen) + depth + 1, num)
            ahead.append(len(loads.begun) - len(seen))
        if (
            look and not stopped and len(seen) == good - 1
        ):  # the last batch waits to be taken; an error may wait after it
            loads.wait_for(last)
            loads.wait_for_thread()
    return {
        "stopped": stopped,
        "seen": seen,
        "ahead": ahead,
        "begun": list(loads.begun),
        "most active": loads.most_active,
        "in caller": loads.in_caller,
        "first held": loads.is_first_held,
    }


def closed_early(learner: ModuleType, num: int, depth: int) -> dict[str, Any]:
    """Take two batches, close, and record what still runs."""
    before, loads = set(threading.enumerate()), Loads()
    batches = iter(learner.prefetch(loads, num, depth))
    first = next_of(batches)
    loads.first_taken.set()
    second = next_of(batches)
    loads.wait_for(2 + depth)
    begun = len(loads.begun)
    batches.close()
    end = time.monotonic() + PATIENCE_S / 2
    while (left := [one for one in set(threading.enumerate()) - before if one.is_alive()]) and time.monotonic() < end:
        time.sleep(0.01)
    return {"seen": [list(first), list(second)], "begun": begun, "after": len(loads.begun), "left": len(left)}


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Run each scenario of case["runs"], up to the first in which a wait took too long."""
    num, depth, at = case["num"], case["depth"], case["at"]
    runs = {
        "held": lambda: run_all(learner, Loads(), num, depth, look=True),
        "shallow": lambda: run_all(learner, Loads(), num, 1, look=True),
        "none": lambda: run_all(learner, Loads(), 0, depth),
        "one": lambda: run_all(learner, Loads(), 1, depth),
        "two": lambda: run_all(learner, Loads(), 2, depth),
        "empty": lambda: run_all(learner, Loads(empty_at=at), num, 2),
        "broken": lambda: run_all(learner, Loads(fails_at=at), num, 2, look=True),
        "closed": lambda: closed_early(learner, 200, depth),
    }
    found: dict[str, Any] = {}
    for name in case["runs"]:
        found[name] = runs[name]()
        if found[name].get("stopped"):
            break
    return found
