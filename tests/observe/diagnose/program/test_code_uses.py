"""Calls whose cause stands elsewhere: where a function is given away, which one a line calls, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen import changed, evidence, rank
from test_where_lines_part import MISMATCH, Way, found_in, of_script

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.evidence import Call, Group, RankEvidence
from frog.observe.diagnose.program.program_diagnosis import diagnose_program

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


def reported_in(folder: Path, text: str, ways: dict[int, Way], one: RankEvidence, line: int) -> Diagnosis:
    """Diagnose rank 0 in its last call, while gloo ended rank 1 at a line: its record is lost."""
    found_in(folder, text, ways, one)
    script = folder / "train.py"
    place = CodeLine(file=str(script), line=line, function="<module>")
    ended = rank(1, mismatch=MISMATCH, line=place, stack=[place], exit_code=-6)
    return diagnose_program(evidence(of_script(script, one, ways), ended, hung=False))


def test_hook_of_one_rank_is_named_if_the_record_of_the_other_is_lost(tmp_path: Path) -> None:
    ways = {2: [(2, "stats"), (7, "<module>")]}
    one = rank(0, ("all_reduce", 8, 8), ("all_reduce", 1, 2), pending=1)
    found = reported_in(tmp_path, HOOK, ways, one, line=8)
    assert (found.fault, found.rank, found.certain) == ("branch", 0, False)
    assert "`if rank == 0:` in line 4, the only one under which stats is used" in found.finding


def test_rank_that_tries_again_is_named_if_the_record_of_the_other_is_lost(tmp_path: Path) -> None:
    one = rank(0, ("barrier", 0, 3), ("barrier", 0, 3), pending=1)
    found = reported_in(tmp_path, AGAIN, {}, one, line=8)
    assert (found.fault, found.rank, found.certain) == ("skipped", 0, False)
    assert "rank 0 tries again in the loop `for attempt in range(3):`" in found.finding


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


SUPER = """\
def synchronized(function):
    def wrapper(*args):
        result = function(*args)
        dist.barrier()
        return result
    return wrapper
class Saver:
    @synchronized
    def save(self):
        pass
class MainSaver(Saver):
    @synchronized
    def save(self):
        super().save()
saver = MainSaver() if rank == 0 else Saver()
saver.save()
dist.all_reduce(loss)
"""


def test_ranks_that_met_in_a_call_of_another_way_had_parted_there(tmp_path: Path) -> None:
    step, barrier = ("all_reduce", 8, 17), ("barrier", 0, 4)
    ranks = [rank(0, step, barrier, barrier, pending=1), rank(1, step, barrier, step, pending=1)]
    script = tmp_path / "train.py"
    script.write_text(SUPER)
    ranks = [of_script(script, each, {4: [(4, "wrapper"), (16, "<module>")]}) for each in ranks]
    places = [(4, "wrapper"), (14, "save"), (3, "wrapper"), (16, "<module>")]
    lines = tuple(CodeLine(file=str(script), line=line, function=name) for line, name in places)
    ranks[0].calls[1] = changed(ranks[0].calls[1], callers=lines)
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.certain) == ("branch", False)
    assert "the barrier before that came from other lines, rank 0's from train.py:14 (save)" in found.finding
    assert "in line 15, the only one under which MainSaver is used" in found.finding


CLASSES = """\
class Apply:
    def run(self, gradient):
        dist.all_reduce(gradient)
class Skip:
    def run(self, gradient):
        pass
for gradient in gradients:
    policy = Skip() if gradient.max() > 9 else Apply()
    policy.run(gradient)
    dist.broadcast(loss, src=0)
"""


def test_call_in_a_method_of_one_of_several_classes_names_where_that_is_chosen(tmp_path: Path) -> None:
    ways = {3: [(3, "run"), (9, "<module>")]}
    both = [("all_reduce", 6, 3), ("broadcast", 1, 10)]
    ranks = [rank(0, *both * 2, both[0], pending=1), rank(1, *both * 2, both[1], pending=1)]
    found = found_in(tmp_path, CLASSES, ways, *ranks)
    assert (found.fault, found.rank) == ("skipped", 1)
    assert "of Apply, one of the classes with a method run" in found.finding
    assert "see line 8 (`policy = Skip() if gradient.max() > 9 else Apply()`)" in found.finding


AGAIN = """\
for attempt in range(3):
    try:
        dist.barrier()
        fetch()
        break
    except OSError:
        time.sleep(1)
dist.all_reduce(x)
"""


def test_rank_that_tries_again_after_an_error_is_the_one_that_differs(tmp_path: Path) -> None:
    barrier = ("barrier", 0, 3)
    ranks = [rank(0, barrier, ("all_reduce", 8, 8), pending=1), rank(1, barrier, barrier, pending=1)]
    found = found_in(tmp_path, AGAIN, {}, *ranks)
    assert (found.fault, found.rank, found.certain) == ("skipped", 1, False)
    assert "rank 1 tries again in the loop `for attempt in range(3):`" in found.finding
    assert "an error that `except OSError:` in line 6 caught" in found.finding


LEFT = """\
for batch in batches:
    if not len(batch):
        continue
    for p in parameters:
        dist.all_reduce(p)
dist.all_gather(seen)
"""


def test_loop_that_a_rank_left_comes_before_the_loop_in_it(tmp_path: Path) -> None:
    both = [("all_reduce", 9, 5), ("all_reduce", 4, 5)] * 2
    ranks = [rank(0, *both, both[0], pending=1), rank(1, *both, ("all_gather", 1, 6), pending=1)]
    found = found_in(tmp_path, LEFT, {}, *ranks)
    assert (found.fault, found.certain) == ("batches", False)
    assert "rank 1 has left the loop `for batch in batches:` in line 1" in found.finding
    assert "in a round of it, by `if not len(batch): continue` in line 2" in found.finding


EPOCHS = """\
def fit():
    for epoch in counter:
        for x in batches:
            step(x)
def step(x):
    for p in parameters:
        dist.all_reduce(p)
fit()
dist.all_reduce(error)
"""


@pytest.mark.parametrize("lost", [False, True])
def test_loop_around_one_that_begins_anew_is_the_one_that_a_rank_has_left(tmp_path: Path, lost: bool) -> None:
    ways = {7: [(7, "step"), (4, "fit"), (8, "<module>")]}
    both = [("all_reduce", 9, 7), ("all_reduce", 4, 7)] * 2
    waiting = rank(0, *both, both[0], pending=1)
    if lost:
        found = reported_in(tmp_path, EPOCHS, ways, waiting, line=9)
    else:
        found = found_in(tmp_path, EPOCHS, ways, waiting, rank(1, *both, ("all_reduce", 1, 9), pending=1))
    assert (found.fault, found.certain) == ("batches", False)
    assert (
        "rank 1 has left the loops `for epoch in counter:` in line 2 and `for x in batches:` in line 3" in found.finding
    )


ITEMS = """\
def reduce(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
def step(model):
    losses = [model.out]
    if model.aux is not None:
        losses.append(model.aux)
    reduce(losses)
while True:
    step(model)
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ITEMS, "`losses` gets an item in line 7, under `if model.aux is not None:` in line 6"),
        (
            ITEMS.replace("[model.out]", "[x for x in outs if x.ok]").replace(
                "        losses.append(model.aux)", "        pass"
            ),
            "it goes through what passes `if x.ok` in line 5",
        ),
    ],
    ids=["added under a test", "filtered"],
)
def test_item_that_a_rank_left_out_of_a_loop_is_traced_to_its_test(tmp_path: Path, text: str, words: str) -> None:
    ways = {3: [(3, "reduce"), (8, "step"), (10, "<module>")]}
    both = [("all_reduce", 7, 3), ("all_reduce", 2, 3)]
    ranks = [rank(0, *both * 3, pending=1), rank(1, *both * 2, both[0], both[0], pending=1)]
    found = found_in(tmp_path, text, ways, *ranks)
    assert (found.fault, found.rank, found.certain) == ("skipped", 1, False)
    assert "rank 1 left out all_reduce of 2 float, which followed each time before" in found.finding
    assert words in found.finding


BUS = """\
def register(routes):
    for source, targets in mine(routes) + others(routes):
        groups[source] = dist.new_group([source, *targets])
def transfer(tensor, source):
    dist.broadcast(tensor, src=source, group=groups[source])
transfer(weights, 0)
transfer(samples, 1)
"""


def test_groups_of_the_same_ranks_in_another_order_are_named(tmp_path: Path) -> None:
    first, second = (Group((0, 1, 2), name) for name in ("1", "2"))
    script = tmp_path / "train.py"
    script.write_text(BUS)

    def call(group: Group, size: int, *, done: bool) -> Call:
        line = CodeLine(file=str(script), line=5, function="transfer")
        return Call(group, 1, "broadcast", done, ((size,),), ("Float",), created_ns=size, line=line, callers=(line,))

    made = [[call(first, 11, done=False)], [call(second, 11, done=False)]]
    made.append([call(first, 11, done=True), call(second, 5, done=False)])
    ranks = [RankEvidence(number, calls=calls, has_calls=True, sources=["a"]) for number, calls in enumerate(made)]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("groups", 1, False)
    assert "they probably created these groups in another order" in found.finding
    assert "the program calls new_group at train.py:3" in found.finding
