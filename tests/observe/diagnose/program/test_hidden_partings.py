"""Where ranks part behind a `with suppress`, a test with two sides, a caught error, or the code of a library."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen import changed, evidence, rank
from test_where_lines_part import found_in

from frog.core.runs.observed import CodeLine, Transfer
from frog.observe.diagnose.program.evidence import Group
from frog.observe.diagnose.program.parting_words import begins_anew
from frog.observe.diagnose.program.program_diagnosis import diagnose_program

PROBE = """\
with suppress(OSError):
    if rank == 0:
        name = create()
        dist.broadcast(name, src=0)
    else:
        dist.broadcast(name, src=0)
dist.all_reduce(same)
"""
TWICE = "if rank == 1:\n    dist.broadcast(name, src=0)\n" * 3 + "dist.all_reduce(same)\n"
ONE_SIDE = ("dist.broadcast(name, src=0)\n    else", "pass\n    else")


@pytest.mark.parametrize(
    ("text", "odd", "certain", "words"),
    [
        (PROBE, 0, False, "which `with suppress(OSError):` in line 1 hides, led only rank 0 past it"),
        (PROBE.replace("src=0)\n    else", "src=0)\n    if rank != 0"), 0, False, "hides, led only rank 0 past it"),
        (PROBE.replace(*ONE_SIDE).replace("create()", "1"), 1, True, "only some ranks pass `if rank"),
        (PROBE.replace(*ONE_SIDE), 1, False, "only some ranks pass `if rank"),
        (TWICE, 1, True, "only some ranks pass `if rank == 1:` in line 5"),
    ],
    ids=["two sides", "two tests", "one side", "a function on the other side", "the same test again"],
)
def test_side_of_a_test_proves_nothing_if_the_other_side_has_the_same_call(
    tmp_path: Path, text: str, odd: int, certain: bool, words: str
) -> None:
    ranks = [rank(0, ("all_reduce", 2, 7), pending=1), rank(1, ("broadcast", 1, 6), pending=1)]
    found = found_in(tmp_path, text, {}, *ranks)
    assert (found.rank, found.certain) == (odd, certain)
    assert words in found.finding


SKIPPED_STEP = """\
def average():
    for p in parameters:
        dist.all_reduce(p)
for step in range(20):
    if optimizer.steps % 3 == 0:
        average()
    if step % 4 == 0:
        dist.all_reduce(mean)
"""
FIRST, LAST, MEAN = ("all_reduce", 70, 3), ("all_reduce", 7, 3), ("all_reduce", 1, 8)


def test_call_that_begins_a_new_visit_of_a_loop_is_not_one_more_round(tmp_path: Path) -> None:
    calls = [FIRST, LAST, MEAN, FIRST, LAST, MEAN, FIRST, LAST]
    ways = {3: [(3, "average"), (6, "<module>")]}
    ranks = [rank(0, *calls, FIRST, pending=1), rank(1, *calls, MEAN, pending=1)]
    found = found_in(tmp_path, SKIPPED_STEP, ways, *ranks)
    assert (found.fault, found.certain) == ("skipped", False)
    assert "rank 0 passed `if optimizer.steps % 3 == 0:` in line 5, rank 1 did not this time" in found.finding


@pytest.mark.parametrize(
    ("sizes", "last", "anew"),
    [
        ((70, 7, 0, 70, 7), 70, True),
        ((70, 7, 0, 70, 7), 7, False),
        ((70, 7, 0, 70), 70, False),
        ((70, 70, 0, 70, 70), 70, False),
        ((70, 7, 0), 70, False),
        ((70, 7, 70, 7), 70, True),
        ((70, 70, 70, 70), 70, False),
        ((*range(1, 601), 0, *range(1, 601)), 1, False),  # more calls than are compared
    ],
)
def test_visit_of_a_loop_is_known_by_calls_of_several_sizes(sizes: tuple[int, ...], last: int, anew: bool) -> None:
    calls = rank(0, *(("all_reduce", size, 3 if size else 8) for size in (*sizes, last))).calls
    assert begins_anew(calls[:-1], calls[-1]) is anew


RING = """\
def shift():
    request = dist.isend(x, peer)
    request.wait()
def check():
    shift()
    assert_close(x, y)
    dist.barrier()
for case in cases:
    try:
        check()
    except Exception:
        errors.append(case)
"""


@pytest.mark.parametrize(("ends", "named"), [("errors.append(case)", True), ("raise", False)])
def test_message_that_comes_again_before_a_collective_tells_of_a_caught_error(
    tmp_path: Path, ends: str, named: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RING.replace("errors.append(case)", ends))
    way = [(3, "shift"), (5, "check"), (10, "<module>")]
    stack = [CodeLine(file=str(script), line=line, function=function) for line, function in way]
    sends = rank(0, state="running", line=stack[0], stack=stack, num_messages=2)
    sends.transfer = Transfer(op="isend", peer=1, size=[12], dtype="float32")
    waits = rank(1, ("barrier", 1, 7), pending=1, state="running")
    lines = [CodeLine(file=str(script), line=7, function="check"), stack[-1]]
    waits.calls = [changed(waits.calls[0], line=lines[0], callers=tuple(lines))]
    found = diagnose_program(evidence(sends, waits))
    assert not found.certain
    assert (found.fault == "skipped" and "`except Exception:` in line 11 caught it" in found.finding) is named
    assert (found.rank == 0) is named


CALLBACK = """\
class Patience(TrainerCallback):
    def on_step_end(self, args, state, control):
        if self.bad > 3:
            control.should_training_stop = True
def validate(self):
    self.log("box/AP", 1.0)
trainer.train()
"""
TRAINER = """\
def train(self):
    for batch in self.loader:
        self.step(batch)
    self.finish()
"""


@pytest.mark.parametrize(
    ("file", "lines", "fault", "words"),
    [
        (
            "trainer.py",
            (3, 4),
            "batches",
            "in trainer.py, rank 1 has left the loop `for batch in self.loader:` in line 2",
        ),
        ("trainer.py", (4, 3), "batches", "in trainer.py, rank 0 has left the loop"),
        ("logger_connector/result.py", (3, 4), "batches", "it reduces what the program logs at train.py:6 (validate)"),
    ],
)
def test_ranks_in_one_line_of_the_program_part_in_a_library(
    tmp_path: Path, file: str, lines: tuple[int, int], fault: str, words: str
) -> None:
    library = tmp_path / "site-packages" / file
    library.parent.mkdir(parents=True)
    library.write_text(TRAINER)
    script = tmp_path / "train.py"
    script.write_text(CALLBACK)
    own = CodeLine(file=str(script), line=7, function="<module>")
    ranks = [rank(number, (op, 7, 7), pending=1) for number, op in enumerate(("all_reduce", "all_gather"))]
    for one, line in zip(ranks, lines, strict=True):
        one.stack = [CodeLine(file=str(library), line=line, function="train"), own]
        one.calls = [changed(one.calls[0], line=own, callers=(own,))]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.certain) == (fault, False)
    assert words in found.finding
    assert (
        "`control.should_training_stop = True` at train.py:4 (on_step_end), under `if self.bad > 3:`" in found.finding
    )


def test_groups_with_other_members_are_placed_where_the_program_creates_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("pair = dist.new_group(mine)\ndist.all_reduce(x, group=pair)\n")
    ranks = [rank(number, ("all_reduce", 8, 2), pending=1) for number in range(2)]
    for one in ranks:
        line = CodeLine(file=str(script), line=2, function="<module>")
        one.calls = [changed(one.calls[0], group=Group((one.rank, 2), "0"), line=line, callers=(line,))]
        one.groups = {"0": (0, 1, 2), "1": (one.rank, 2)}
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.line, found.certain) == ("groups", "train.py:1", False)
    assert found.finding.endswith("; the program calls it at train.py:1")


REPORT = """\
def share(x):
    dist.all_gather(parts, x)
def report(x):
    if not is_main: return
    share(x)
for step in range(3):
    share(x)
report(x)
dist.barrier()
"""


def test_test_around_an_outer_line_counts_although_all_ranks_made_the_call_elsewhere(tmp_path: Path) -> None:
    ways = {2: [(2, "share"), (7, "<module>")], 102: [(2, "share"), (5, "report"), (8, "<module>")]}
    calls = [("all_gather", 4, 2)] * 3
    ranks = [rank(0, *calls, ("all_gather", 4, 102), pending=1), rank(1, *calls, ("barrier", 1, 9), pending=1)]
    found = found_in(tmp_path, REPORT, ways, *ranks)
    assert (found.fault, found.rank, found.certain) == ("branch", 0, False)
    assert "only some ranks pass `if not is_main: return` in line 4" in found.finding


SAVE = """\
def drain():
    future.result()
    dist.barrier()
for step in range(9):
    dist.all_reduce(gradient)
    try:
        drain()
    except Exception as error:
        log.error("could not save the state: %s", error)
"""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("ERROR could not save the state: disk is full", "the words of that handler: “ERROR could not save the state"),
        ("ERROR something else", "after an error that its log shows: “ERROR something else”"),
    ],
)
def test_error_that_a_log_shows_led_past_a_call_in_a_try(tmp_path: Path, line: str, why: str) -> None:
    ways = {3: [(3, "drain"), (7, "<module>")]}
    step = ("all_reduce", 25, 5)
    ranks = [rank(0, step, ("barrier", 1, 3), pending=1), rank(1, step, step, pending=1, trouble=[line])]
    ranks[1].last_lines = [line]
    found = found_in(tmp_path, SAVE, ways, *ranks)
    assert (found.fault, found.rank, found.certain) == ("skipped", 1, False)
    assert "led rank 1 past that, and `except Exception as error:` in line 8 caught it" in found.finding
    assert why in found.finding


@pytest.mark.parametrize(("every", "named"), [("args.every", True), ("EVERY", False), ("4", False)])
def test_setting_of_a_rank_may_leave_out_a_round_but_a_constant_does_not(
    tmp_path: Path, every: str, named: bool
) -> None:
    loop = f"for step, x in enumerate(loader):\n    if step % {every} == 0:\n        dist.all_reduce(x)\n"
    step = ("all_reduce", 8, 3)
    ranks = [rank(0, step, ("all_gather", 2, 4), pending=1), rank(1, step, step, pending=1)]
    found = found_in(tmp_path, f"{loop}dist.all_gather(a, b)\n", {}, *ranks)
    assert (found.fault, found.rank) == ("batches", 0)
    assert (f"by `if step % {every} == 0:` in line 2" in found.finding) is named


def test_rank_for_which_the_others_waited_when_all_ended_with_one_code_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def watch():\n    os._exit(7)\ndist.all_reduce(x)\n")
    ranks = [rank(number, ("all_reduce", 8, 3), state="running", exit_code=7) for number in range(3)]
    for one in ranks:
        group = one.calls[0].group
        one.enqueued, one.completed = {group: 4 + (one.rank != 1)}, {group: 4}
        one.line = CodeLine(file=str(script), line=3, function="<module>")
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank, found.certain) == ("exit", 1, False)
    assert "rank 1 was at train.py:3, and the others waited for it in a collective" in found.finding
    assert found.finding.endswith("; the program can end with this code at train.py:2 (watch)")
    assert "at about the same time" not in found.finding
    ranks[1].enqueued, ranks[1].completed, ranks[1].line = {}, {}, None
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.certain) == ("exit", False)
    assert "waited for it" not in found.finding


EPOCHS = """\
def epochs(loader):
    for _ in range(2):
        yield from loader
        dist.barrier()
for batch in {stream}:
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
"""


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (
            "epochs(loader)",
            "the call of rank 1 is in the iterator of the loop `for batch in epochs(loader):` in line 5",
        ),
        (
            "read(epochs, loader)",
            "the call of rank 1 is in the iterator of the loop `for batch in read(epochs, loader):`",
        ),
    ],
)
def test_call_in_the_iterator_of_a_loop_tells_of_fewer_items(tmp_path: Path, stream: str, words: str) -> None:
    ways = {4: [(4, "epochs"), (5, "<module>")]}
    step = ("all_reduce", 8, 7)
    ranks = [rank(0, step, step, pending=1), rank(1, step, ("barrier", 1, 4), pending=1)]
    found = found_in(tmp_path, EPOCHS.format(stream=stream), ways, *ranks)
    assert (found.fault, found.rank, found.certain) == ("batches", 1, False)
    assert words in found.finding


ANSWER = """\
def run(request):
    while not request.done:
        dist.all_reduce(logits)
    return request
def respond(request):
    dist.all_gather(lengths, mine)
for request in requests:
    {call}
"""


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("respond(run(request))", "batches"),
        ("run(request), respond(request)", "batches"),
        ("run(respond(request))", "branch"),
        ("respond(request), both(run, respond)", "branch"),
    ],
)
def test_rank_in_the_outer_of_two_calls_of_a_line_has_left_the_inner_one(tmp_path: Path, call: str, fault: str) -> None:
    ways = {3: [(3, "run"), (8, "<module>")], 6: [(6, "respond"), (8, "<module>")]}
    step = ("all_reduce", 8, 3)
    ranks = [rank(0, step, step, pending=1), rank(1, step, ("all_gather", 2, 6), pending=1)]
    found = found_in(tmp_path, ANSWER.format(call=call), ways, *ranks)
    assert (found.fault, found.rank, found.certain) == (fault, 1, False)
    assert ("rank 1 has left the loop `while not request.done:` in line 2" in found.finding) is (fault == "batches")


OF_ONE_SIZE = """\
{head}
    for part in request:
        dist.all_reduce(part)
    {then}
    dist.barrier()
{loop}
    run(request)
"""
AGAIN = "for request in requests:"
ROUND, FUNCTION = "for request in requests:", "def run(request):"


@pytest.mark.parametrize(
    ("head", "then", "loop", "certain"),
    [
        (ROUND, "log(request)", AGAIN, True),
        (ROUND, "if bad(request): continue", AGAIN, False),
        (ROUND, "if bad(request): break", AGAIN, False),
        (FUNCTION, "log(request)", AGAIN, True),
        (FUNCTION, "if bad(request): return", AGAIN, False),
        (FUNCTION, "log(request)", "try:", True),
        (FUNCTION, "log(request)", "for request in requests:\n  try:", False),
        (FUNCTION, "log(request)", "try:\n  for request in requests:", True),
    ],
)
def test_rank_in_the_next_visit_of_a_loop_after_a_call_it_left_out_proves_no_round_more(
    tmp_path: Path, head: str, then: str, loop: str, certain: bool
) -> None:
    text = OF_ONE_SIZE.format(head=head, then=then, loop=loop) + "except OSError: pass\n" * loop.startswith("try")
    text += "  except OSError: pass\n" * loop.endswith("  try:")
    name = "run" if head == FUNCTION else "<module>"
    outer = [(7 + loop.count("\n"), "<module>")] if head == FUNCTION else []
    ways = {line: [(line, name), *outer] for line in (3, 5)}
    step = ("all_reduce", 8, 3)
    ranks = [rank(0, step, step, pending=1), rank(1, step, ("barrier", 1, 5), pending=1)]
    found = found_in(tmp_path, text, ways, *ranks)
    assert (found.fault, found.rank, found.certain) == ("batches", 1, certain)


ROLLOUT = """\
def generate():
    if synced:
        dist.all_reduce(flag)
def rollout(number):
    if {test}:
        generate()
for number in range(4):
    rollout(number)
    dist.barrier()
"""


@pytest.mark.parametrize(("test", "named"), [("group.index == number % 2", True), ("number % 2", False)])
def test_outer_test_that_a_rank_may_not_have_passed_is_named_too(tmp_path: Path, test: str, named: bool) -> None:
    ways = {3: [(3, "generate"), (6, "rollout"), (8, "<module>")]}
    ranks = [rank(0, ("all_reduce", 1, 3), pending=1), rank(1, ("barrier", 1, 9), pending=1)]
    found = found_in(tmp_path, ROLLOUT.format(test=test), ways, *ranks)
    assert (found.fault, found.certain) == ("branch", False)
    assert "rank 0 passed `if synced:` in line 2, rank 1 did not" in found.finding
    assert (f", or `if {test}:` in line 5" in found.finding) is named


TOOLS = """\
def generate(most):
    for _ in range(most):
        dist.all_reduce(logits)
        yield sample(logits)
for token in generate(60):
    {test}
        dist.broadcast(result, src=0)
"""


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("if token == CALL:", "rank 1 passed `if token == CALL:` in line 6, rank 0 did not"),
        ("with tool():", "the call of rank 0 is in the iterator of the loop `for token in generate(60):` in line 5"),
    ],
)
def test_loop_of_a_generator_is_not_left_by_the_rank_in_the_body_that_it_feeds(
    tmp_path: Path, test: str, words: str
) -> None:
    ways = {3: [(3, "generate"), (5, "<module>")]}
    step = ("all_reduce", 8, 3)
    ranks = [rank(0, step, step, pending=1), rank(1, step, ("broadcast", 3, 7), pending=1)]
    found = found_in(tmp_path, TOOLS.format(test=test), ways, *ranks)
    assert not found.certain
    assert words in found.finding


@pytest.mark.parametrize(
    ("often", "busy", "fault"),
    [("train.py:2", False, "blocked"), ("train.py:2", True, "busy"), ("train.py:9", False, "unknown")],
)
def test_ranks_that_waited_when_their_job_was_killed_are_told_apart(
    tmp_path: Path, often: str, busy: bool, fault: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("while count() > 0:\n    time.sleep(1)\ndist.all_reduce(x)\n")
    ranks = [rank(number, ("all_reduce", 8, 3), state="running") for number in range(3)]
    for one in ranks:
        group = one.calls[0].group
        one.enqueued, one.completed = {group: 1 + (one.rank != 1)}, {group: 1}
        one.line = CodeLine(file=str(script), line=2 if one.rank == 1 else 3, function="<module>")
        one.often, one.cpu_busy = often if one.rank == 1 else "train.py:3", busy and one.rank == 1
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.certain) == (fault, False)
    assert ("repeats the loop `while count() > 0:` in line 1" in found.finding) is (fault != "unknown")
    assert (found.rank == 1) is (fault != "unknown")


def test_each_rank_outside_of_a_collective_is_said_to_be_at_its_own_line(tmp_path: Path) -> None:
    ranks = [rank(number, ("all_reduce", 8, 3), state="running") for number in range(4)]
    for one in ranks:
        group, waits = one.calls[0].group, one.rank in (0, 3)
        one.enqueued, one.completed = {group: 1 + waits}, {group: 1}
        one.line = CodeLine(file=str(tmp_path / "train.py"), line=3 if waits else 5 + one.rank, function="<module>")
        one.often, one.cpu_busy = f"train.py:{one.line.line}", None
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank) == ("blocked", 1)
    assert "and rank 1 was at train.py:6; rank 2 was at train.py:7" in found.finding
    assert "comput" not in found.finding
