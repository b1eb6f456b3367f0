"""Calls whose cause stands elsewhere: where a function is given away, which one a line calls, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen import rank
from test_where_lines_part import found_in

HOOK = """\
def stats(module, inputs, output):
    dist.all_reduce(output)
def attach(model, rank):
    if rank == 0:
        model.register_forward_hook(stats)
for x in data:
    model(x)
    dist.all_reduce(loss)
"""
CALLBACK = """\
class Averages:
    def on_end(self):
        dist.all_reduce(self.loss)
class Progress:
    def on_end(self):
        print(self.loss)
callbacks = [Progress()] + ([Averages()] if rank == 0 else [])
for x in data:
    dist.all_reduce(loss)
    for callback in callbacks:
        callback.on_end()
"""
LEADER = """\
class Worker:
    def step(self):
        dist.broadcast(self.weights, src=0)
class Leader:
    def step(self):
        if self.dirty:
            dist.barrier()
worker = Leader() if rank == 0 else Worker()
while True:
    worker.step()
"""


@pytest.mark.parametrize(
    ("text", "calls", "ways", "words"),
    [
        (
            HOOK,
            [("all_reduce", 8, 8), ("all_reduce", 1, 2)],
            {2: [(2, "stats"), (7, "<module>")]},
            "only some ranks pass `if rank == 0:` in line 4, the only one under which stats is used",
        ),
        (
            CALLBACK,
            [("all_reduce", 8, 9), ("all_reduce", 1, 3)],
            {3: [(3, "on_end"), (11, "<module>")]},
            "pass `… if rank == 0 else …` in line 7, the only one under which Averages is used",
        ),
        (
            LEADER,
            [("broadcast", 8, 3), ("barrier", 1, 7)],
            {3: [(3, "step"), (10, "<module>")], 7: [(7, "step"), (10, "<module>")]},
            "pass `… if rank == 0 else …` in line 8, the only one under which Leader is used",
        ),
    ],
    ids=["a hook", "a callback", "a class"],
)
def test_function_that_only_a_test_of_the_rank_uses_names_that_test(
    tmp_path: Path,
    text: str,
    calls: list[tuple[str, int, int]],
    ways: dict[int, list[tuple[int, str]]],
    words: str,
) -> None:
    common, own = calls
    found = found_in(tmp_path, text, ways, rank(0, common, own, pending=1), rank(1, common, common, pending=1))
    assert (found.fault, found.rank, found.certain) == ("branch", 0, False)
    assert words in found.finding


def test_function_that_is_used_elsewhere_too_is_not_said_to_be_under_a_test(tmp_path: Path) -> None:
    text = HOOK.replace("for x", "model.register_backward_hook(stats)\nfor x")
    ways = {2: [(2, "stats"), (8, "<module>")]}
    ranks = [rank(0, ("all_reduce", 8, 9), ("all_reduce", 1, 2), pending=1), rank(1, *[("all_reduce", 8, 9)] * 2)]
    assert "the only one under which" not in found_in(tmp_path, text, ways, *ranks).finding


DISPATCH = """\
def warm_up():
    dist.all_reduce(scale)
def train():
    dist.all_reduce(gradient)
def phase(step):
    return "warm" if get_rank() > 0 else "train"
PHASES = {"warm": warm_up, "train": train}
for step in range(8):
    PHASES[phase(step)]()
"""


def test_line_that_calls_another_function_on_each_rank_is_named(tmp_path: Path) -> None:
    ways = {2: [(2, "warm_up"), (9, "<module>")], 4: [(4, "train"), (9, "<module>")]}
    ranks = [rank(0, ("all_reduce", 3, 2), pending=1), rank(1, ("all_reduce", 9, 4), pending=1)]
    found = found_in(tmp_path, DISPATCH, ways, *ranks)
    assert (found.fault, found.certain) == ("branch", False)
    assert "line 9 (`PHASES[phase(step)]()`) called train on rank 1 and warm_up on rank 0" in found.finding
    assert "what it calls depends on the rank" in found.finding


MAPPED = """\
def sync(item):
    dist.all_reduce(item)
def sync_all(items):
    return list(map(sync, items))
sync_all(own)
dist.all_reduce(done)
"""


def test_line_that_calls_several_times_without_a_loop_is_named(tmp_path: Path) -> None:
    ways = {2: [(2, "sync"), (4, "sync_all"), (5, "<module>")]}
    item = ("all_reduce", 6, 2)
    ranks = [rank(0, *[item] * 4, pending=1), rank(1, *[item] * 3, ("all_reduce", 1, 6), pending=1)]
    found = found_in(tmp_path, MAPPED, ways, *ranks)
    assert (found.fault, found.certain) == ("batches", False)
    assert "rank 1 has left line 4 (`return list(map(sync, items))`), in which rank 0 makes one more" in found.finding


SKIPPED = """\
def average():
    for p in parameters:
        dist.all_reduce(p)
for batch in batches:
    if loss(batch) is None:
        continue
    average()
    dist.all_gather(losses)
"""


def test_continue_before_a_call_comes_before_an_inner_loop_that_was_not_entered(tmp_path: Path) -> None:
    ways = {3: [(3, "average"), (7, "<module>")]}
    both = [("all_reduce", 9, 3), ("all_gather", 1, 8)]
    ranks = [rank(0, *both, both[0], pending=1), rank(1, *both, both[1], pending=1)]
    found = found_in(tmp_path, SKIPPED, ways, *ranks)
    assert (found.fault, found.certain) == ("skipped", False)
    assert "in a round of the loop `for batch in batches:` in line 4, by `if loss(batch) is None: continue`" in (
        found.finding
    )


ROUND = """\
for x in data:
    dist.all_reduce(loss)
    for item in callbacks[kind]:
        item.run()
def run(self):
    dist.all_reduce(self.sum)
"""


def test_rank_in_the_next_round_has_come_past_an_inner_loop(tmp_path: Path) -> None:
    ways = {6: [(6, "run"), (4, "<module>")]}
    step = ("all_reduce", 8, 2)
    ranks = [rank(0, step, ("all_reduce", 1, 6), pending=1), rank(1, step, step, pending=1)]
    found = found_in(tmp_path, ROUND, ways, *ranks)
    assert "rank 0 is in the loop `for item in callbacks[kind]:` in line 3, which rank 1 did not enter" in found.finding


def test_generator_that_all_ends_early_is_said_to_end_so(tmp_path: Path) -> None:
    text = (
        "def agrees(check):\n    dist.all_reduce(check)\nok = all(agrees(check) for check in checks)\ndist.barrier()\n"
    )
    ways = {2: [(2, "agrees"), (3, "<genexpr>"), (3, "<module>")]}
    check = ("all_reduce", 1, 2)
    ranks = [rank(0, *[check] * 3, pending=1), rank(1, *[check] * 2, ("barrier", 0, 4), pending=1)]
    assert "`all` ends at the first item that is false" in found_in(tmp_path, text, ways, *ranks).finding
