"""Which loop or branch of the source the rules name when ranks part there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from seen import changed, evidence, failed, rank

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program import code_blocks
from frog.observe.diagnose.program.assigned_values import ProgramFile
from frog.observe.diagnose.program.code_blocks import is_readable
from frog.observe.diagnose.program.code_partings import ways_past
from frog.observe.diagnose.program.evidence import Group, RankEvidence
from frog.observe.diagnose.program.peer_errors import mark_failed_calls
from frog.observe.diagnose.program.program_diagnosis import diagnose_program

MISMATCH = ("op.preamble.length <= op.nbytes", "train.log")

MICRO_BATCHES = """\
for step in range(30):
    for group in micro_batches(step):
        dist.all_gather(full, shard)
        grad += full
    dist.all_reduce(grad)
"""

EARLY_STOP = """\
def main():
    for epoch in range(10):
        for batch in loader:
            loss.backward()
        dist.barrier()
        if should_stop:
            break
    dist.all_reduce(total)
main()
"""

CHECKPOINT = """\
dist.barrier()
if ckpt.exists():
    dist.broadcast(state, src=0)
model = DDP(model)
"""

TOKENS = """\
def layer(tokens):
    if tokens:
        dist.all_to_all_single(back, counts)
for step in range(8):
    layer(tokens)
    dist.all_reduce(x)
"""

HANDLER = """\
def step():
    dist.all_reduce(grad)
for number in range(30):
    try:
        step()
    except BaseException:
        dist.broadcast(name, src=0)
        raise
"""


def of_script(script: Path, *ranks: RankEvidence, functions: dict[int, str] | None = None) -> list[RankEvidence]:
    """Move the calls of ranks to the lines of a script. functions: of lines that are not the module's own."""
    for one in ranks:
        for number, call in enumerate(one.calls):
            lines = [here(script, line, functions) for line in STACKS.get(call.line.line if call.line else 0, ())]
            lines = lines or [here(script, call.line.line if call.line else 0, functions)]
            one.calls[number] = changed(call, line=lines[0], callers=tuple(lines))
    return list(ranks)


def here(script: Path, line: int, functions: dict[int, str] | None = None) -> CodeLine:
    return CodeLine(file=str(script), line=line, function=(functions or {}).get(line, "<module>"))


STACKS: dict[int, tuple[int, ...]] = {}
"""The lines that led to a call, by its line; set by the tests that need them."""


@pytest.fixture(autouse=True)
def stacks() -> dict[int, tuple[int, ...]]:
    STACKS.clear()
    return STACKS


def written(folder: Path, text: str) -> Path:
    script = folder / "train.py"
    script.write_text(text)
    return script


GATHER, SUM = ("all_gather", 64, 3), ("all_reduce", 64, 5)


@pytest.mark.parametrize(
    ("before", "certain"),
    [("", True), ("        if not group: continue\n", False), ("        if group:\n    ", False)],
    ids=["each round", "a round may be left out", "under a condition"],
)
@pytest.mark.parametrize("world", [2, 3])
def test_loop_with_one_more_round_on_one_rank_is_not_a_skipped_call(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], before: str, certain: bool, world: int
) -> None:
    text = MICRO_BATCHES.replace("        dist.all_gather", f"{before}        dist.all_gather")
    script = written(tmp_path, text)
    shift = text.count("\n") - MICRO_BATCHES.count("\n")
    gather, total = ("all_gather", 64, 3 + shift), ("all_reduce", 64, 5 + shift)
    first = [gather] * 3 + [total]
    left = [rank(n, *first, *[gather] * 3, total, world=world, pending=1) for n in range(world - 1)]
    stayed = rank(world - 1, *first, *[gather] * 3, gather, world=world, pending=1)
    found = diagnose_program(evidence(*of_script(script, *left, stayed)))
    assert (found.fault, found.certain) == ("batches", certain)
    assert found.rank == (0 if world == 2 else world - 1)
    assert {found.line, found.peer_line} == {f"train.py:{3 + shift}", f"train.py:{5 + shift}"}
    assert "rank 0 has left the loop `for group in micro_batches(step):` in line 2" in found.finding


def test_rounds_that_differ_are_not_certainly_skipped_without_the_source() -> None:
    first = [GATHER] * 3 + [SUM]
    ranks = [rank(0, *first, *first[:3], SUM, pending=1), rank(1, *first, *first[:3], GATHER, pending=1)]
    assert not diagnose_program(evidence(*ranks)).certain
    ranks = [rank(0, *first[:3], SUM, pending=1), rank(1, *first[:3], GATHER, SUM, pending=2)]
    assert not diagnose_program(evidence(*ranks)).certain


SAVE = """\
for step in range(9):
    dist.all_reduce(grad)
if has_state:
    dist.barrier()
dist.barrier()
dist.all_reduce(total)
"""


@pytest.mark.parametrize("ended", [False, True])
def test_barrier_that_met_another_one_is_where_the_ranks_part(tmp_path: Path, ended: bool) -> None:
    step, save, last, total = ("all_reduce", 9, 2), ("barrier", 1, 4), ("barrier", 1, 5), ("all_reduce", 1, 6)
    first = rank(0, step, step, save, last, pending=1)
    other = rank(1, step, step, last, state="ended") if ended else rank(1, step, step, last, total, pending=1)
    found = diagnose_program(evidence(*of_script(written(tmp_path, SAVE), first, other)))
    assert (found.fault, found.rank, found.line, found.peer_line) == ("branch", 0, "train.py:4", "train.py:5")
    assert "collective 3 of all ranks comes from different lines" in found.finding
    assert "rank 0 passed `if has_state:` in line 3, rank 1 did not" in found.finding


def test_call_from_the_same_line_before_is_not_from_the_branch(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    """Both saved half-way, in line 4; at the end only one does, under a test."""
    text = "def save():\n    dist.barrier()\nstep()\nsave()\nif is_zero:\n    save()\ndist.barrier()\nstep()\n"
    script = written(tmp_path, text)
    step, half, last, end = ("all_reduce", 9, 3), ("barrier", 1, 4), ("barrier", 1, 6), ("barrier", 1, 7)
    stacks.update({4: (2, 4), 6: (2, 6)})
    ranks = [rank(0, step, half, last, end, pending=1), rank(1, step, half, end, ("all_reduce", 1, 8), pending=1)]
    found = diagnose_program(evidence(*of_script(script, *ranks, functions={2: "save"})))
    assert (found.fault, found.rank, found.line) == ("branch", 0, "train.py:2 (save)")
    assert found.finding.endswith("rank 0 passed `if is_zero:` in line 5, rank 1 did not")


def test_ranks_that_call_from_lines_of_their_own_are_in_step(tmp_path: Path) -> None:
    text = "if first:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)\ndist.barrier()\n"
    ranks = [rank(n, ("broadcast", 4, 2 + 2 * n), ("barrier", 1, 5), pending=1) for n in (0, 1)]
    assert diagnose_program(evidence(*of_script(written(tmp_path, text), *ranks))).fault == "network"
    ranks = [rank(0, ("broadcast", 4, 2), ("barrier", 1, 5), pending=1), rank(1, ("broadcast", 4, 4), state="ended")]
    assert diagnose_program(evidence(*of_script(written(tmp_path, text), *ranks))).fault == "ended"


def test_break_by_which_a_rank_left_its_epochs_is_named(tmp_path: Path) -> None:
    """gloo ends the rank that receives the longer message, so its calls are unknown and its stack is of the crash."""
    functions = dict.fromkeys(range(2, 9), "main")
    script = written(tmp_path, EARLY_STOP)
    epoch = [("all_reduce", 33, 4)] * 2 + [("barrier", 1, 5)]
    stayed = rank(1, *epoch, *epoch, ("all_reduce", 33, 4), pending=1)
    of_script(script, stayed, functions=functions)
    stack = [here(script, 8, functions), here(script, 9)]
    crashed = RankEvidence(0, line=stack[0], stack=stack, exit_code=-6, mismatch=MISMATCH)
    stayed.calls = [replace(call, callers=(*call.callers, here(script, 9))) for call in stayed.calls]
    found = diagnose_program(evidence(crashed, stayed, hung=False))
    assert (found.fault, found.rank, found.certain) == ("batches", 0, False)
    assert (found.line, found.peer_line) == ("train.py:8 (main)", "train.py:4 (main)")
    assert "`for epoch in range(10):` in line 2" in found.finding
    assert found.finding.endswith("a rank can leave it by `if should_stop: break` in line 6")


def test_branch_with_any_test_is_likely(tmp_path: Path) -> None:
    script = written(tmp_path, CHECKPOINT)
    passed = rank(0, ("barrier", 1, 1), ("broadcast", 1, 3), pending=1)
    other = rank(1, ("barrier", 1, 1), ("all_gather", 1, 4), pending=1)
    found = diagnose_program(evidence(*of_script(script, passed, other)))
    assert (found.fault, found.rank, found.line, found.certain) == ("branch", 0, "train.py:3", False)
    assert found.finding.endswith(
        "rank 0 passed `if ckpt.exists():` in line 2, rank 1 did not; the test in line 2 depends on files, which may "
        "differ between ranks"
    )


def test_branch_that_both_ranks_passed_is_not_named(tmp_path: Path) -> None:
    script = written(tmp_path, "if resume:\n    dist.barrier()\n    dist.broadcast(state, src=0)\nmodel = DDP(model)\n")
    ahead = rank(0, ("barrier", 1, 2), ("broadcast", 1, 3), pending=1)
    other = rank(1, ("barrier", 1, 2), ("all_gather", 1, 4), pending=1)
    found = diagnose_program(evidence(*of_script(script, ahead, other)))
    assert "if resume" not in found.finding


def test_branch_deeper_in_a_function_that_one_rank_did_not_pass_this_time(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    stacks[3] = (3, 5)
    step = [("all_to_all", 2, 3), ("all_reduce", 8, 6)]
    ranks = [rank(0, *step, step[0], pending=1), rank(1, *step, step[1], pending=1)]
    found = diagnose_program(evidence(*of_script(written(tmp_path, TOKENS), *ranks, functions={3: "layer"})))
    assert (found.fault, found.rank, found.line, found.certain) == ("skipped", 1, "train.py:6", False)
    assert found.finding.endswith("passed `if tokens:` in line 2, rank 1 did not this time, although it did before")


def test_rank_in_a_handler_of_an_error_is_named(tmp_path: Path, stacks: dict[int, tuple[int, ...]]) -> None:
    stacks[2] = (2, 5)
    step = ("all_reduce", 1000, 2)
    ranks = [rank(0, step, step, step, pending=1), rank(1, step, step, ("broadcast", 1, 7), pending=1)]
    found = diagnose_program(evidence(*of_script(written(tmp_path, HANDLER), *ranks, functions={2: "step"})))
    assert (found.fault, found.rank, found.line) == ("branch", 1, "train.py:7")
    assert "an error led only rank 1 into `except BaseException:` in line 6" in found.finding


def test_branch_around_a_caller_comes_before_what_other_groups_wait_for(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    script = written(
        tmp_path,
        "def save():\n    dist.barrier()\nfor step in range(9):\n    dist.all_reduce(a, group=tp)\n"
        "    if step == 6 and tp_rank == 0:\n        save()\n",
    )
    stacks[2] = (2, 6)
    ranks = []
    for number in range(4):
        saves = number % 2 == 0
        steps = [("all_reduce", 32, 4)] * 2
        one = rank(number, *steps, ("barrier", 1, 2) if saves else steps[0], world=4, pending=1)
        pair = Group((0, 1) if number < 2 else (2, 3), "0")
        one.calls = [changed(call, group=pair) if call.op == "all_reduce" else call for call in one.calls]
        if saves:
            one.calls[-1] = changed(one.calls[-1], seq=1, created_ns=10**12)
        ranks.append(one)
    found = diagnose_program(evidence(*of_script(script, *ranks, functions={2: "save"})))
    assert (found.fault, found.rank, found.line) == ("branch", 0, "train.py:2 (save)")
    assert "ranks 0 and 2 wait in barrier" in found.finding
    assert "`if step == 6 and tp_rank == 0:` in line 5" in found.finding


def test_statements_that_leave_out_a_call_are_named_of_a_rank_that_ended(tmp_path: Path) -> None:
    script = written(
        tmp_path, "for batch in loader:\n    if not valid.any():\n        continue\n    loss.backward()\n    step()\n"
    )
    waits = rank(0, *[("all_reduce", 136, 4)] * 4, pending=1)
    ended = rank(1, *[("all_reduce", 136, 4)] * 3, state="ended", exit_code=0)
    found = diagnose_program(evidence(*of_script(script, waits, ended)))
    assert (found.fault, found.rank) == ("batches", 1)
    assert found.finding.endswith("or skipped one, perhaps by `if not valid.any(): continue` in line 2")


@pytest.mark.parametrize(
    ("leave", "is_named"),
    [
        ("exit(0)", True),
        ("sys.exit()", True),
        ("os._exit(0)", True),
        ("raise SystemExit", True),
        ("pool.exit()", False),
    ],
)
def test_program_that_a_rank_ends_in_its_loop_is_named(tmp_path: Path, leave: str, is_named: bool) -> None:
    text = f"for step in range(12):\n    if loss.isnan():\n        {leave}\n    loss.backward()\n    step()\n"
    script = written(tmp_path, text)
    waits = rank(0, *[("all_reduce", 136, 4)] * 4, pending=1)
    ended = rank(1, *[("all_reduce", 136, 4)] * 3, state="ended", exit_code=0)
    found = diagnose_program(evidence(*of_script(script, waits, ended)))
    assert (found.fault, found.rank) == ("batches", 1)
    assert (f"perhaps by `if loss.isnan(): {leave}` in line 2" in found.finding) == is_named


def test_line_that_ends_the_program_is_named_of_a_rank_that_never_called(tmp_path: Path) -> None:
    text = "dist.broadcast(x, 0)\ntry:\n    load()\nexcept OSError:\n    sys.exit()\ndist.barrier()\n"
    script = written(tmp_path, text)
    waits = rank(0, ("broadcast", 2, 1), ("barrier", 1, 6), pending=1)
    ended = rank(1, ("broadcast", 2, 1), state="ended", exit_code=0)
    found = diagnose_program(evidence(*of_script(script, waits, ended)))
    assert (found.fault, found.rank) == ("ended", 1)
    assert found.finding.endswith("; the program can end this way at train.py:5, under `except OSError:` in line 4")


METRICS = """\
def gather():
    metrics = collect()
    if not metrics:
        return {}
    dist.all_gather_object(everyone, metrics)
for step in range(1, 31):
    dist.all_reduce(grad)
    if step % 2 == 0:
        gather()
"""


def test_early_return_comes_before_a_branch_on_the_round(tmp_path: Path, stacks: dict[int, tuple[int, ...]]) -> None:
    """All ranks agree on `step % 2 == 0`; one of them leaves the function that is called there."""
    stacks[5] = (5, 9)
    step, gather = ("all_reduce", 8, 7), ("all_gather", 1, 5)
    others = [rank(n, step, step, gather, world=3, pending=1) for n in (0, 1)]
    left = rank(2, step, step, step, world=3, pending=1)
    ranks = of_script(written(tmp_path, METRICS), *others, left, functions={5: "gather"})
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.line, found.certain) == ("branch", 2, "train.py:7", False)
    assert "rank 2 left gather by `if not metrics: return` in line 3, rank 0 did not; `metrics` is " in found.finding
    always = METRICS.replace("step % 2 == 0", "step > args.warmup").replace("        return {}", "        pass")
    written(tmp_path, always)
    code_blocks.source_of.cache_clear()
    assert "`if step > args.warmup:` in line 8" in diagnose_program(evidence(*ranks)).finding


CLIP = """\
def norm():
    dist.all_reduce(total)
def step(grads):
    if found_inf:
        return False
    def unused():
        if never:
            return None
    norm()
for number in range(20):
    dist.all_reduce(loss)
    step(grads)
"""


def test_function_left_early_this_time_is_named(tmp_path: Path, stacks: dict[int, tuple[int, ...]]) -> None:
    stacks[2] = (2, 9, 12)
    loss, norm = ("all_reduce", 4, 11), ("all_reduce", 1, 2)
    ranks = [
        rank(0, loss, norm, loss, norm, loss, norm, pending=1),
        rank(1, loss, norm, loss, norm, loss, loss, pending=1),
    ]
    functions = {2: "norm", 9: "step"}
    found = diagnose_program(evidence(*of_script(written(tmp_path, CLIP), *ranks, functions=functions)))
    assert (found.fault, found.rank, found.certain) == ("skipped", 1, False)
    assert found.finding.endswith("rank 1 left step this time by `if found_inf: return` in line 4, rank 0 did not")


MAIN_FIRST = (
    "dist.all_reduce(x)\nif rank > 0:\n    dist.barrier()\ndata = prepare()\nif rank == 0:\n    dist.barrier()\n"
)


@pytest.mark.parametrize(("computes", "fault"), [(True, "busy"), (False, "blocked")])
def test_rank_at_work_is_not_said_to_never_call_what_is_under_a_test_of_the_rank(
    tmp_path: Path, computes: bool, fault: str
) -> None:
    script = written(tmp_path, MAIN_FIRST)
    works = rank(0, ("all_reduce", 8, 1), state="running", line=here(script, 4), cpu_busy=computes)
    waits = rank(1, ("all_reduce", 8, 1), ("barrier", 1, 3), state="running", pending=1)
    found = diagnose_program(evidence(*of_script(script, works, waits)))
    assert (found.fault, found.rank, found.line, found.peer_line) == (fault, 0, "train.py:4", "train.py:3")
    assert not found.certain
    assert "the others wait under `if rank > 0:` in line 2: rank 0 must call it from another line" in found.finding
    ended = rank(0, ("all_reduce", 8, 1), state="ended", exit_code=0)
    found = diagnose_program(evidence(*of_script(script, ended, waits)))
    assert (found.fault, found.certain) == ("branch", False)  # it may have left out its own


EVALUATE = """\
def load():
    if rank != 0:
        dist.barrier()
    if rank == 0:
        dist.barrier()
load()
if rank == 0:
    load()
"""


def test_test_that_a_rank_passed_before_without_harm_is_not_the_cause(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    stacks.update({3: (3, 6), 5: (5, 6), 50: (5, 8)})
    script = written(tmp_path, EVALUATE)
    ranks = [rank(0, ("barrier", 1, 5), ("barrier", 1, 50), pending=1), rank(1, ("barrier", 1, 3), state="ended")]
    found = diagnose_program(evidence(*of_script(script, *ranks, functions={3: "load", 5: "load"})))
    assert (found.fault, found.rank, found.line) == ("branch", 0, "train.py:5 (load)")
    assert found.finding.endswith("only some ranks pass `if rank == 0:` in line 7 of train.py")


def test_circle_of_ranks_in_two_kinds_of_groups_is_another_order() -> None:
    """Ranks 1 and 2 call the all-reduce of their column before the all-to-all of their row, for once."""
    rows, columns = [Group((0, 1), "1"), Group((2, 3), "2")], [Group((0, 2), "3"), Group((1, 3), "4")]
    ranks = []
    for number in range(4):
        exchange, average = ("all_to_all", 8, 9), ("all_reduce", 64, 15)
        last = average if number in (1, 2) else exchange
        one = rank(number, exchange, average, exchange, average, last, world=4, pending=1)
        one.calls = [
            changed(
                call,
                group=rows[number // 2] if call.op == "all_to_all" else columns[number % 2],
                seq=(call.seq + 1) // 2,
            )
            for call in one.calls
        ]
        ranks.append(one)
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("order", 1, False)
    assert {found.line, found.peer_line} == {"train.py:9 (main)", "train.py:15 (main)"}
    assert "ranks 0 to 3 wait for each other in a circle" in found.finding
    assert "ranks 1 and 2 called another group first than before" in found.finding
    ranks[1].calls[-1] = changed(ranks[1].calls[-1], op="all_to_all", group=rows[0], line=ranks[0].calls[-1].line)
    assert diagnose_program(evidence(*ranks)).fault == "skipped"


REQUESTS = """\
def receive(number):
    dist.broadcast_object_list(message, src=0)
    return message
def check():
    if not ongoing:
        return
    dist.all_reduce(finished)
for number in range(12):
    for request in receive(number):
        write(request)
    check()
"""


@pytest.mark.parametrize("generator", [False, True])
def test_call_in_the_head_of_a_loop_is_made_once(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], generator: bool
) -> None:
    """`for x in receive():` calls `receive` before the loop, unless it is a generator, which runs in each round."""
    stacks.update({2: (2, 9), 7: (7, 11)})
    script = written(tmp_path, REQUESTS.replace("return message", "yield message") if generator else REQUESTS)
    message, finished = ("broadcast", 1, 2), ("all_reduce", 4, 7)
    ranks = [
        rank(0, message, finished, message, finished, pending=1),
        rank(1, message, finished, message, message, pending=1),
    ]
    ranks = of_script(script, *ranks, functions={2: "receive", 7: "check"})
    found = diagnose_program(evidence(*ranks))
    if not generator:
        written(tmp_path, REQUESTS.replace("return\n    dist", "pass\n    dist"))
        code_blocks.source_of.cache_clear()
        without_return = diagnose_program(evidence(*ranks)).finding
        assert "for request in" not in without_return
    if generator:
        assert "rank 0 has left the loop `for request in receive(number):` in line 9" in found.finding
    else:
        assert (found.fault, found.rank, found.line) == ("skipped", 1, "train.py:2 (receive)")
        assert found.finding.endswith(
            "rank 1 left check this time by `if not ongoing: return` in line 5, rank 0 did not"
        )


EPOCHS = """\
def train():
    for epoch in range(epochs):
        for batch in {batches}:
            dist.all_reduce(grad)
        if patience > 3:
            break
    dist.barrier()
train()
"""


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ("range(4)", "the loop `for epoch in range(epochs):` in line 2, in which rank 1 begins one more round"),
        (
            "loader",
            "the loops `for batch in loader:` in line 3 and `for epoch in range(epochs):` in line 2, in which rank 1 "
            "continues: the number of rounds of one of them differs",
        ),
    ],
)
def test_loops_that_a_rank_left_are_all_named_unless_their_rounds_are_fixed(
    tmp_path: Path, batches: str, words: str
) -> None:
    script = written(tmp_path, EPOCHS.format(batches=batches))
    grad, barrier = ("all_reduce", 64, 4), ("barrier", 1, 7)
    ranks = [rank(0, *[grad] * 8, barrier, pending=1), rank(1, *[grad] * 9, pending=1)]
    found = diagnose_program(evidence(*of_script(script, *ranks, functions={4: "train", 7: "train"})))
    assert (found.fault, found.rank) == ("batches", 0)
    assert f"rank 0 has left {words}" in found.finding
    assert "by `if patience > 3: break` in line 5" in found.finding


TOWER = """\
for step in range(10):
    if images is not None:
        dist.all_gather(full, shard)
    for layer in layers:
        dist.all_gather(full, weights)
"""


def test_rank_at_an_earlier_line_may_have_begun_another_round_instead_of_leaving_the_loop(tmp_path: Path) -> None:
    """Rank 1 has no images in step 2: it is in the loop that both have left in step 1."""
    script = written(tmp_path, TOWER)
    tower, layer = ("all_gather", 16, 3), ("all_gather", 64, 5)
    first = (tower, layer, layer)
    ranks = of_script(script, rank(0, *first, tower, pending=1), rank(1, *first, layer, pending=1))
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.certain) == ("skipped", False)
    assert "rank 0 passed `if images is not None:` in line 2, rank 1 did not this time" in found.finding


@pytest.mark.parametrize(("head", "certain"), [("if average:", False), ("with torch.no_grad():", True)])
def test_loop_is_not_certainly_left_if_a_call_after_it_may_be_skipped(tmp_path: Path, head: str, certain: bool) -> None:
    text = MICRO_BATCHES.replace("    dist.all_reduce(grad)", f"    {head}\n        dist.all_reduce(grad)")
    script = written(tmp_path, text)
    gather, total = ("all_gather", 64, 3), ("all_reduce", 64, 6)
    first = (gather, gather, total, gather, gather)
    ranks = of_script(script, rank(0, *first, total, pending=1), rank(1, *first, gather, pending=1))
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.certain) == ("batches", certain)


VALIDATION = """\
def objective(batch):
    dist.all_reduce(total)
for number in range(4):
    objective(batch)
    if valid_loader is not None:
        objective(valid)
"""


def test_extra_calls_from_the_same_line_through_another_function_are_named(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    """Rank 0 validates after each step; its calls meet those of the others' next steps."""
    stacks.update({2: (2, 4), 20: (2, 6)})
    train, valid = ("all_reduce", 2, 2), ("all_reduce", 2, 20)
    ranks = [
        rank(0, train, valid, train, valid, train, pending=1),
        rank(1, train, train, train, train, state="ended", exit_code=0),
    ]
    script = written(tmp_path, VALIDATION)
    found = diagnose_program(evidence(*of_script(script, *ranks, functions={2: "objective"})))
    assert (found.fault, found.rank, found.certain) == ("branch", 0, False)
    assert (found.line, found.peer_line) == ("train.py:6", "train.py:4")
    assert "2 times through train.py:6, where rank 1 never came: rank 0 passed `if valid_loader" in found.finding
    ranks[0].calls = [changed(call, callers=()) for call in ranks[0].calls]
    assert diagnose_program(evidence(*ranks)).fault == "batches"


STATE = """\
def broadcast_state(tensors):
    for name in tensors:
        dist.broadcast(tensors[name], src=0)
broadcast_state(restored)
for step in range(5):
    dist.all_reduce(weights)
"""


def test_loop_that_a_rank_has_not_come_to_yet_is_not_named(tmp_path: Path, stacks: dict[int, tuple[int, ...]]) -> None:
    stacks[3] = (3, 4)
    calls = rank(0, ("broadcast", 6, 3), pending=1), rank(1, ("all_reduce", 60, 6), pending=1)
    ranks = of_script(written(tmp_path, STATE), *calls, functions={3: "broadcast_state"})
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank) == ("batches", 1)
    assert found.finding.endswith(
        "rank 0 is in the loop `for name in tensors:` in line 2, which rank 1 did not enter this time, or left earlier"
    )
    written(tmp_path, STATE.replace("for name in tensors", "with no_grad()"))
    code_blocks.source_of.cache_clear()
    assert "in the loop" not in diagnose_program(evidence(*ranks)).finding


def test_loop_with_a_warning_and_a_continue_is_named(tmp_path: Path) -> None:
    """The rank that went on logged why; gloo ended it, so that its record is lost."""
    script = written(
        tmp_path,
        "for epoch in range(4):\n    for x in batches:\n        if not isfinite(loss):\n            continue\n"
        "        dist.all_reduce(grad)\n    dist.all_reduce(total)\n",
    )
    grad, total = ("all_reduce", 49, 5), ("all_reduce", 1, 6)
    stayed = of_script(script, rank(1, grad, grad, total, grad, grad, pending=1))[0]
    left = rank(0, mismatch=MISMATCH, line=here(script, 6), exit_code=-6, trouble=["WARNING: loss is not finite"])
    found = diagnose_program(evidence(left, stayed, hung=False))
    assert (found.fault, found.rank, found.line, found.certain) == ("batches", 0, "train.py:6", False)
    assert "by `if not isfinite(loss): continue` in line 3, after an error that its log shows" in found.finding


LOAD = """\
def load(path):
    if cached:
        dist.barrier()
        return
    dist.all_reduce(size)
    dist.barrier()
load("a")
load("a")
load("a")
"""


def test_branch_around_a_skipped_call_is_named(tmp_path: Path) -> None:
    script = written(tmp_path, LOAD)
    hit, size, last = ("barrier", 1, 3), ("all_reduce", 1, 5), ("barrier", 1, 6)
    ranks = [rank(0, size, last, hit, hit, hit, pending=1), rank(1, size, last, hit, hit, size, pending=1)]
    found = diagnose_program(evidence(*of_script(script, *ranks, functions=dict.fromkeys((3, 5, 6), "load"))))
    assert (found.fault, found.rank) == ("skipped", 1)
    assert found.finding.endswith("rank 1 skipped barrier at train.py:3 (load), which is under `if cached:` in line 2")


def test_error_in_the_log_of_a_rank_that_ended_is_named() -> None:
    error = replace(failed("KeyError", "8", 13), fatal=False)
    ranks = [rank(0, ("barrier", 1, 30), pending=1), rank(1, state="ended", exit_code=0, caught=[error])]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.line, found.certain) == ("ended", 1, "train.py:13 (main)", True)
    assert found.finding.startswith("rank 1 ended with exit code 0 before it called barrier")
    assert found.finding.endswith("after an error that its log shows: KeyError: 8, at train.py:13 (main)")


AVERAGE = """\
for step in range(9):
    for p in parameters:
        {test}
            dist.all_reduce(p.grad)
"""


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (
            "if p.grad is not None:",
            "probably one rank leaves out a call, by `if p.grad is not None:` in line 3, or",
        ),
        ("if dist.is_initialized():", "so probably in another order on rank 0"),
        ("with torch.no_grad():", "so probably in another order on rank 0"),
    ],
)
@pytest.mark.parametrize("reported", [False, True])
def test_loop_with_calls_of_several_sizes_and_a_test_that_leaves_some_out(
    tmp_path: Path, test: str, words: str, reported: bool
) -> None:
    script = written(tmp_path, AVERAGE.format(test=test))
    sizes = [("all_reduce", size, 4) for size in (64, 8, 32)]
    ranks = of_script(script, rank(0, *sizes, sizes[0], sizes[2], pending=1), rank(1, *sizes, *sizes[:2], pending=1))
    if reported:
        ranks[1] = rank(1, mismatch=MISMATCH, line=here(script, 4), exit_code=-6)
    found = diagnose_program(evidence(*ranks, hung=not reported))
    assert (found.fault, found.rank, found.certain) == ("order", 0, False)
    assert "the loop `for p in parameters:` in line 2 calls collectives of several sizes" in found.finding
    assert words in found.finding


def test_source_is_read_only_if_it_has_the_lines_function(tmp_path: Path) -> None:
    """A file may have changed, or another one may have its name."""
    script = written(tmp_path, EARLY_STOP)
    assert is_readable(here(script, 8, {8: "main"}))
    assert is_readable(here(script, 9))
    assert not is_readable(here(script, 8, {8: "evaluate"}))
    assert not is_readable(here(tmp_path / "other.py", 8))
    assert ways_past(here(tmp_path / "other.py", 8)) == ""


LAYERS = """\
for update in range(100):
    for layer in layers:
        if keeps(layer):
            dist.all_gather(full, shard)
    dist.all_reduce(loss)
"""


@pytest.mark.parametrize(("first", "fault"), [(3, "skipped"), (1, "batches")], ids=["as often before", "not as often"])
def test_test_in_a_loop_comes_before_its_end_if_it_had_as_many_rounds_before(
    tmp_path: Path, first: int, fault: str
) -> None:
    gather, total = ("all_gather", 64, 4), ("all_reduce", 1, 5)
    before = [gather] * 3 + [total] + [gather] * first + [total]
    ranks = [rank(0, *before, *[gather] * 3, pending=1), rank(1, *before, gather, gather, total, pending=1)]
    found = diagnose_program(evidence(*of_script(written(tmp_path, LAYERS), *ranks)))
    assert (found.fault, found.rank, found.line, found.certain) == (fault, 1, "train.py:5", False)
    assert ("`for layer in layers:` in line 2, by `if keeps(layer):` in line 3" in found.finding) == (first == 3)
    assert "number of its rounds differs" in found.finding or first == 1


AGAIN = """\
def work():
    dist.all_gather(everyone, x)
    dist.all_reduce(out)
def attempt():
    for _ in range(3):
        try:
            return work()
        except MemoryError:
            free()
for step in range(12):
    attempt()
"""


@pytest.mark.parametrize("handler", ["            free()", "            raise"])
def test_handler_of_an_error_by_which_a_rank_tried_again_is_named(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], handler: str
) -> None:
    stacks.update({2: (2, 7, 11), 3: (3, 7, 11)})
    gather, total = ("all_gather", 10, 2), ("all_reduce", 30, 3)
    ranks = [
        rank(0, gather, total, gather, total, pending=1),
        rank(1, gather, total, gather, gather, pending=1),
    ]
    functions = {2: "work", 3: "work", 7: "attempt"}
    script = written(tmp_path, AGAIN.replace("            free()", handler))
    found = diagnose_program(evidence(*of_script(script, *ranks, functions=functions)))
    assert (found.fault, found.rank, found.line) == ("skipped", 1, "train.py:2 (work)")
    caught = ", perhaps by an error that `except MemoryError:` in line 8 caught"
    assert found.finding.endswith(caught) == (handler == "            free()")


FALLBACK = """\
def load():
    try:
        module = compiled()
        dist.all_reduce(healthy)
        return module
    except (ImportError, SyntaxError):
        return None
load()
dist.all_reduce(grad)
"""


def test_error_that_was_caught_before_a_call_of_the_others_is_the_cause(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    """gloo ended the process that received the longer message, so that only its stack is known."""
    script = written(tmp_path, FALLBACK)
    frames = [here(script, 4, {4: "load"}), here(script, 8)]
    receiver = RankEvidence(
        0, line=frames[0], stack=frames, exit_code=-6, state="running", mismatch=MISMATCH, sources=["x"]
    )
    past = of_script(script, rank(1, ("all_reduce", 12, 9), pending=1))
    found = diagnose_program(evidence(receiver, *past))
    assert (found.fault, found.rank, found.line, found.certain) == ("branch", 1, "train.py:9", False)
    assert "led only rank 1 into `except (ImportError, SyntaxError):` in line 6" in found.finding


TWO_GROUPS = """\
def execute(tokens):
    if tokens == 0:
        return forward(1)
    dist.all_reduce(size, group=dp)
    return forward(tokens)
for step in range(20):
    execute(tokens)
    dist.all_reduce(hidden, group=tp)
"""


@pytest.mark.parametrize(("rounds", "fault"), [("range(20)", "skipped"), ("batches", "batches")])
def test_test_by_which_a_rank_that_ended_left_out_a_call_is_named(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], rounds: str, fault: str
) -> None:
    """A loop with a fixed number of rounds cannot have ended earlier on one rank."""
    stacks[4] = (4, 7)
    size = ("all_reduce", 1, 4)
    waits, ended = rank(0, *[size] * 4, pending=1), rank(1, *[size] * 3, state="ended", exit_code=0)
    script = written(tmp_path, TWO_GROUPS.replace("range(20)", rounds))
    found = diagnose_program(evidence(*of_script(script, waits, ended, functions={4: "execute"})))
    assert (found.fault, found.rank, found.certain) == (fault, 1, False)
    assert found.finding.endswith("by `if tokens == 0: return` in line 2") == (fault == "skipped")


AT_END = """\
dist.all_reduce(grad)
if writes:
    dist.all_gather(everyone, output)
"""


def test_branch_that_the_ranks_which_ended_did_not_pass_is_named(tmp_path: Path) -> None:
    step = ("all_reduce", 8, 1)
    ended = [rank(number, step, world=3, state="ended", exit_code=0) for number in (1, 2)]
    waits = rank(0, step, ("all_gather", 8, 3), world=3, pending=1)
    script = written(tmp_path, AT_END)
    found = diagnose_program(evidence(*of_script(script, waits, *ended)))
    assert (found.fault, found.rank, found.line, found.certain) == ("branch", 0, "train.py:3", False)
    assert found.finding.endswith("only rank 0 passed `if writes:` in line 2, or the others ended before it")
    written(tmp_path, AT_END.replace("writes", "trainer.is_global_zero"))
    code_blocks.source_of.cache_clear()
    found = diagnose_program(evidence(waits, *ended))
    assert (found.fault, found.rank, found.certain) == ("branch", 0, True)


BUFFER = """\
def memory():
    dist.reduce(used)
def log(line):
    if "time" in line:
        memory()
def epoch():
    for i in range(4):
        dist.all_reduce(grad)
    log(line)
for number in range(3):
    epoch()
    log(line)
"""


def test_branch_that_the_last_common_call_passed_on_another_way_is_named(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    stacks[8] = (8, 11)
    step, used = ("all_reduce", 32, 8), ("reduce", 1, 2)
    first = [step] * 4 + [used]
    ranks = [
        rank(0, *first, step, world=3, pending=1),
        *[rank(number, *first, used, world=3, pending=1) for number in (1, 2)],
    ]
    functions = {2: "memory", 5: "log", 8: "epoch", 9: "epoch"}
    script = written(tmp_path, BUFFER)
    of_script(script, *ranks, functions=functions)
    for one in ranks:
        for number, call in enumerate(one.calls):
            if call.op == "reduce":
                way = (2, 5, 9, 11) if number == 4 else (2, 5, 12)
                one.calls[number] = changed(call, callers=tuple(here(script, line, functions) for line in way))
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.line, found.certain) == ("skipped", 0, "train.py:8 (epoch)", False)
    assert 'rank 1 passed `if "time" in line:` in line 4, rank 0 did not this time' in found.finding


KEPT = """\
def read(shards):
    for shard in shards:
        dist.all_reduce(piece)
def load(shards):
    try:
        read(shards)
    except OSError as error:
        kept = error
    dist.all_gather(errors, kept)
load([1, 2, 3])
load([4, 5, 6])
"""


@pytest.mark.parametrize("before", [3, 0], ids=["with an earlier visit", "without"])
def test_loop_that_a_caught_error_may_have_left_is_not_certainly_of_fewer_rounds(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], before: int
) -> None:
    stacks.update({3: (3, 6, 11), 9: (9, 11)})
    piece, errors = ("all_reduce", 16, 3), ("all_gather", 1, 9)
    first = [piece] * before + [errors] * (before > 0)
    ranks = [rank(0, *first, piece, piece, pending=1), rank(1, *first, piece, errors, pending=1)]
    functions = {3: "read", 6: "load", 9: "load"}
    found = diagnose_program(evidence(*of_script(written(tmp_path, KEPT), *ranks, functions=functions)))
    assert (found.rank, found.line, found.certain) == (1, "train.py:9 (load)", False)
    assert found.fault == ("skipped" if before else "batches")
    if before:
        assert "by an error that `except OSError as error:` in line 7 caught: it made 1 call there" in found.finding
    else:
        assert "or an error led rank 1 out of it, which `except OSError as error:` in line 7 caught" in found.finding


def test_handler_is_named_beside_the_branch_that_the_rank_may_have_passed(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    stacks.update({2: (2, 6)})
    script = written(
        tmp_path,
        "def drain():\n    if pending: wait(); dist.barrier()\nfor step in range(9):\n    dist.all_reduce(grad)\n"
        "    try:\n        drain()\n    except Exception as error:\n        log('checkpoint %d was not saved', step)\n",
    )
    grad, met = ("all_reduce", 64, 4), ("barrier", 1, 2)
    ranks = [rank(0, grad, met, grad, met, pending=1), rank(1, grad, met, grad, grad, pending=1)]
    found = diagnose_program(evidence(*of_script(script, *ranks, functions={2: "drain"})))
    assert (found.rank, found.line, found.certain) == (1, "train.py:4", False)
    assert found.finding.endswith(
        "; or an error before this call led rank 1 into `except Exception as error:` in line 7"
    )
    ranks[1].last_lines = ["step 1", "checkpoint 4 was not saved: stale"]
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("skipped", 1, False)
    assert "led only rank 1 into `except Exception as error:` in line 7" in found.finding
    assert found.finding.endswith("“checkpoint 4 was not saved: stale”")
    ranks[0].last_lines = ["checkpoint 2 was not saved: stale"]
    assert "; or an error before this call" in diagnose_program(evidence(*ranks)).finding


def test_loop_over_a_set_explains_a_message_of_another_size(tmp_path: Path) -> None:
    script = written(
        tmp_path, "self.names = {name for name in names}\nfor name in self.names:\n    dist.all_gather(shards, name)\n"
    )
    crashed = RankEvidence(
        0, line=here(script, 3), exit_code=-6, state="running", mismatch=MISMATCH, sources=["train.log"]
    )
    waits = of_script(script, rank(1, ("all_gather", 64, 3), pending=1))
    found = diagnose_program(evidence(crashed, *waits))
    assert (found.fault, found.line, found.certain) == ("order", "train.py:3", False)
    assert "the loop `for name in self.names:` in line 2 goes through a set" in found.finding


RETURNS = """\
def forward(x):
    dist.all_to_all(received, sent)
def main():
    for step in range(3):
        forward(x)
    if not writes:
        return
    forward(sample)
    dist.all_gather(everyone, output)
main()
"""


@pytest.mark.parametrize(("extra", "fault"), [(2, "branch"), (9, "ended")], ids=["same line", "new line"])
def test_return_by_which_a_rank_ended_is_named(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], extra: int, fault: str
) -> None:
    stacks.update({2: (2, 5, 10), 9: (9, 10)})
    step, functions = ("all_to_all", 8, 2), {2: "forward", 5: "main", 8: "main", 9: "main"}
    last = step if extra == 2 else ("all_gather", 8, 9)
    waits, ended = rank(0, step, step, last, pending=1), rank(1, step, step, state="ended", exit_code=0)
    script = written(tmp_path, RETURNS)
    of_script(script, waits, ended, functions=functions)
    if extra == 2:
        way = tuple(here(script, line, functions) for line in (2, 8, 10))
        waits.calls[-1] = changed(waits.calls[-1], callers=way)
    found = diagnose_program(evidence(waits, ended))
    assert (found.fault, found.rank) == (fault, 1)
    assert "left main by `if not writes: return` in line 6" in found.finding
    if extra == 2:
        assert (found.line, found.peer_line) == ("train.py:5 (main)", "train.py:8 (main)")


MICRO = """\
for step in range(9):
    for micro in range({rounds}):
        try:
            loss = forward(micro)
        except ValueError:
            continue
        loss.backward()
    dist.all_reduce(counts)
"""


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize(("rounds", "fault"), [("2", "skipped"), ("num_micro", "skipped"), ("len(x[step])", "batches")])
def test_loop_of_a_fixed_number_of_rounds_is_not_left_earlier(
    tmp_path: Path, rounds: str, fault: str, reported: bool
) -> None:
    """A loop over constants has as many rounds on all ranks; of another one, earlier rounds tell."""
    backward, counts = ("all_reduce", 9, 7), ("all_reduce", 2, 8)
    steps = [*[backward] * 2, counts, *[backward] * (2 if fault == "skipped" else 3), counts]
    ranks = [rank(0, *steps, backward, backward, pending=1), rank(1, *steps, backward, counts, pending=1)]
    if rounds == "2":
        ranks = [rank(0, backward, backward, pending=1), rank(1, backward, counts, pending=1)]
    script = written(tmp_path, MICRO.format(rounds=rounds))
    of_script(script, *ranks)
    if reported:
        ranks[1] = rank(1, mismatch=MISMATCH, line=here(script, 8), exit_code=-6)
    found = diagnose_program(evidence(*ranks, hung=not reported))
    assert (found.fault, found.rank, found.line, found.certain) == (fault, 1, "train.py:8", False)
    assert "`except ValueError: continue` in line 5" in found.finding
    doubtful = "or the number of its rounds differs between the ranks" in found.finding
    assert doubtful == (rounds == "num_micro") or fault == "batches"


FIGURES = """\
def on_epoch_end(trainer):
    if not trainer.{test}:
        return
    dist.barrier()
for epoch in range(epochs):
    for batch in {batches}:
        dist.all_reduce(grad)
    on_epoch_end(trainer)
"""


@pytest.mark.parametrize(
    ("test", "batches"),
    [("is_global_zero", "loader"), ("draws", "range(2)"), ("is_global_zero", "range(2)")],
)
def test_early_return_before_a_collective_is_the_cause_rather_than_the_loop_that_comes_next(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], test: str, batches: str
) -> None:
    """The ranks that returned are in the loop again: of the next epoch, not one round behind."""
    stacks[4] = (4, 8)
    grad, barrier = ("all_reduce", 18, 7), ("barrier", 1, 4)
    others = [rank(number, grad, grad, grad, world=3, pending=1) for number in (1, 2)]
    drawing = rank(0, grad, grad, barrier, world=3, pending=1)
    script = written(tmp_path, FIGURES.format(test=test, batches=batches))
    of_script(script, drawing, *others, functions={4: "on_epoch_end"})
    found = diagnose_program(evidence(drawing, *others))
    assert (found.fault, found.rank, found.line, found.certain) == ("branch", 0, "train.py:4 (on_epoch_end)", False)
    assert f"`if not trainer.{test}: return` in line 2" in found.finding


LEAVES = """\
def main(rank):
    dist.all_reduce(grad)
    if {test}:
        return
    dist.barrier()
main(rank)
"""


@pytest.mark.parametrize(
    ("test", "world", "expected"),
    [("rank == 1", 2, ("ended", 1)), ("rank == 2", 3, ("ended", 2)), ("rank != 0", 3, ("branch", 0))],
)
def test_fewer_ranks_are_named_where_some_returned_and_ended(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], test: str, world: int, expected: tuple[str, int]
) -> None:
    stacks.update({2: (2, 6), 5: (5, 6)})
    step, last = ("all_reduce", 8, 2), ("barrier", 1, 5)
    ranks = [
        rank(number, step, world=world, state="ended", exit_code=0)
        if eval(test, {"rank": number})
        else rank(number, step, last, world=world, pending=1)
        for number in range(world)
    ]
    of_script(written(tmp_path, LEAVES.format(test=test)), *ranks, functions={2: "main", 5: "main"})
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == (*expected, expected[0] == "ended")
    assert f"`if {test}: return` in line 3" in found.finding


KEYS = """\
def synchronize(metrics):
    for name in sorted(metrics):
        dist.all_reduce(value)
for step in range(9):
    dist.all_reduce(grad)
    synchronize(metrics)
"""


@pytest.mark.parametrize("crashed", [None, 0, 1])
def test_rank_with_more_calls_in_a_loop_than_each_time_before_is_odd(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], crashed: int | None
) -> None:
    """Rank 1 has one more value. gloo may end either rank, and its record is lost."""
    stacks[3] = (3, 6)
    grad, value, functions = ("all_reduce", 48, 5), ("all_reduce", 1, 3), {3: "synchronize"}
    steps = [grad, value, value] * 3
    script = written(tmp_path, KEYS)
    ranks = of_script(script, rank(0, *steps, grad, pending=1), rank(1, *steps, value, pending=1), functions=functions)
    if crashed is not None:
        lost = [here(script, line, functions) for line in ((3, 6) if crashed else (5,))]
        ranks[crashed] = rank(crashed, mismatch=MISMATCH, line=lost[0], stack=lost, exit_code=-6)
    found = diagnose_program(evidence(*ranks, hung=crashed is None))
    assert (found.fault, found.rank, found.line) == ("batches", 1, "train.py:3 (synchronize)")
    assert "rank 0 has left the loop `for name in sorted(metrics):` in line 2" in found.finding


def test_crashed_rank_at_another_line_than_all_others_is_odd(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    """Its record is lost, and too few rounds are known that would tell."""
    stacks[3] = (3, 6)
    grad, value, functions = ("all_reduce", 48, 5), ("all_reduce", 1, 3), {3: "synchronize"}
    script = written(tmp_path, KEYS)
    ranks = of_script(script, *(rank(n, grad, value, grad, world=3, pending=1) for n in (0, 1)), functions=functions)
    lost = [here(script, line, functions) for line in (3, 6)]
    ranks.append(rank(2, mismatch=MISMATCH, line=lost[0], stack=lost, exit_code=-6, world=3))
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank, found.line) == ("batches", 2, "train.py:3 (synchronize)")


VALIDATE = """\
def validate(batches):
    for batch in batches:
        model(batch)
def run():
    if is_main:
        validate(batches)
    dist.broadcast(result, src=0)
for step in range(9):
    backward()
    run()
"""


@pytest.mark.parametrize("test", ["is_main", "wanted"])
@pytest.mark.parametrize("before", [0, 1])
def test_calls_under_a_test_of_the_rank_are_not_common_with_a_crashed_rank(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], before: int, test: str
) -> None:
    """Rank 0 sent the first message of its loop before rank 1 crashed of it; the record of rank 1 is lost."""
    stacks.update({3: (3, 6, 10), 7: (7, 10)})
    functions = {3: "validate", 6: "run", 7: "run"}
    buffers, result, step = ("broadcast", 17, 3), ("broadcast", 1, 7), ("all_reduce", 90, 9)
    rounds = [step, buffers, buffers, result] * before
    one = rank(0, *rounds, step, buffers, buffers, pending=1)
    script = written(tmp_path, VALIDATE.replace("is_main", test))
    of_script(script, one, functions=functions)
    lost = [here(script, line, functions) for line in (7, 10)]
    crashed = rank(1, mismatch=MISMATCH, line=lost[0], stack=lost, exit_code=-6)
    found = diagnose_program(evidence(one, crashed, hung=False))
    assert (found.fault, found.rank) == (("branch", 0) if test == "is_main" else ("batches", 1))
    assert found.finding.endswith("rank 0 passed `if is_main:` in line 5, rank 1 did not") == (test == "is_main")


def test_call_without_a_line_has_that_of_its_error(tmp_path: Path) -> None:
    """A rank that is about to be ended writes its record in a hurry, without lines."""
    text = "def load():\n    for request in waiting:\n        if full: break\n        dist.all_reduce(loaded)\n"
    script = written(tmp_path, f"{text}for tick in range(9):\n    load()\n    dist.all_reduce(hidden)\n")
    functions = {4: "load"}
    loaded, hidden = ("all_reduce", 1, 4), ("all_reduce", 16, 7)
    STACKS[4] = (4, 6)
    inside = rank(0, *[loaded, loaded, hidden, loaded, loaded], pending=1)
    outside = rank(1, *[loaded, loaded, hidden, loaded, hidden])
    of_script(script, inside, outside, functions=functions)
    outside.calls = [changed(call, line=None, callers=()) for call in outside.calls]
    place = here(script, 7)
    lost = replace(failed("RuntimeError", "Connection closed by peer [127.0.0.1]:4"), line=place, frames=(place,))
    outside.error = lost
    seen = evidence(inside, outside, hung=False)
    mark_failed_calls(seen)
    found = diagnose_program(seen)
    assert (found.fault, found.rank, found.line) == ("batches", 1, "train.py:7")
    assert "a rank can leave it by `if full: break` in line 3" in found.finding


DECODE = """\
def gather(size):
    dist.all_gather(parts, shard)
def generate():
    while len(tokens) < limit:
        gather(24)
        if tokens[-1] == eos:
            break
for rollout in range(6):
    generate()
    gather(96)
"""


@pytest.mark.parametrize("rounds", [2, 3])
def test_rank_whose_last_visit_of_a_loop_was_shorter_is_found_in_a_later_visit(tmp_path: Path, rounds: int) -> None:
    """gloo accepts a shorter message than it expects, so rank 1 came to the loop again before rank 0 crashed there."""
    functions = {2: "gather", 5: "generate"}
    STACKS.update({5: (2, 5, 9), 10: (2, 10)})
    token, score = ("all_gather", 24, 5), ("all_gather", 96, 10)
    one = rank(1, *[token, token, token, score] * 2, *[token] * rounds, score, token, pending=1)
    of_script(written(tmp_path, DECODE), one, functions=functions)
    stack = [here(tmp_path / "train.py", line, functions) for line in (2, 5, 9)]
    crashed = rank(0, mismatch=MISMATCH, line=stack[0], stack=stack, exit_code=-6)
    found = diagnose_program(evidence(crashed, one, hung=False))
    if rounds == 3:  # it keeps its habit, so that the other one had more or fewer rounds
        assert (found.fault, found.rank) == ("batches", 0)
        assert "and only one size in that loop: the number of its rounds probably differs" in found.finding
        return
    assert (found.fault, found.rank, found.line) == ("batches", 1, "train.py:2 (gather)")
    assert (
        "rank 1 made 2 calls in its last visit of the loop `while len(tokens) < limit:` in line 4, and 3"
        in found.finding
    )
    assert found.finding.endswith("a rank can leave it by `if tokens[-1] == eos: break` in line 6")


SENDER = """\
for bucket in buckets(rank):
    if rank == 0:
        dist.broadcast(weights, src=0)
    else:
        dist.broadcast(received, src=0)
dist.all_reduce(total)
"""


@pytest.mark.parametrize("other", ["differs", "ended", "elsewhere"])
def test_test_of_the_rank_that_both_sides_passed_before_is_not_the_cause(tmp_path: Path, other: str) -> None:
    """The other rank makes its part of the broadcast in a loop of its own, and has left it."""
    group = Group((0, 1), "1")
    sends, receives, total = ("broadcast", 9, 3), ("broadcast", 9, 5), ("all_reduce", 1, 6)
    waits = rank(0, sends, sends, sends, pending=1)
    left = rank(1, receives, receives, *([total] if other != "ended" else []), pending=int(other != "ended"))
    if other == "ended":
        left.state, left.exit_code = "ended", 0
    of_script(written(tmp_path, SENDER), waits, left)
    if other == "elsewhere":
        waits.calls = [changed(call, group=group) for call in waits.calls]
        left.calls = [*(changed(call, group=group) for call in left.calls[:2]), changed(left.calls[2], seq=1)]
    found = diagnose_program(evidence(waits, left))
    assert (found.fault, found.rank, found.certain) == ("batches", 1, False)
    assert "has left the loop `for bucket in buckets(rank):` in line 1" in found.finding
    assert "only some ranks pass" not in found.finding


ROUNDS_OF_BOTH = """\
def step(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
def train(model, other):
    step(model)
    if chance < limit:
        step(other)
for batch in loader:
    train(model, other)
"""


def test_loop_in_which_both_ranks_are_by_different_calls_is_not_where_they_part(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]]
) -> None:
    """One model has fewer parameters than the other; only rank 1 trains the second one in this round."""
    stacks.update({5: (3, 5, 9), 7: (3, 7, 9)})
    functions = {3: "step", 5: "train", 7: "train"}
    one, other = ("all_reduce", 72, 5), ("all_reduce", 12, 7)
    ranks = of_script(
        written(tmp_path, ROUNDS_OF_BOTH),
        *(rank(0, *[one] * 5, pending=1), rank(1, *[one] * 4, other, pending=1)),
        functions=functions,
    )
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.certain) == ("branch", 1, False)
    assert "rank 1 passed `if chance < limit:` in line 6, rank 0 did not" in found.finding


AGREED = """\
def step(flag, own):
    dist.all_reduce(flag)
    if own > limit:
        if flag.item() > 0:
            dist.broadcast(weights, src=0)
for batch in loader:
    step(flag, own)
    dist.all_reduce(loss)
"""


@pytest.mark.parametrize(("text", "line"), [("dist.all_reduce(flag)", 3), ("dist.all_reduce(other)", 4)])
def test_test_of_a_value_that_an_all_reduce_made_equal_is_not_where_ranks_part(
    tmp_path: Path, stacks: dict[int, tuple[int, ...]], text: str, line: int
) -> None:
    """Both ranks agreed on the inner test; the outer one is each rank's own."""
    stacks.update({2: (2, 7), 5: (5, 7)})
    script = written(tmp_path, AGREED.replace("dist.all_reduce(flag)", text))
    ProgramFile.of.cache_clear()
    agreed, loss, functions = ("all_reduce", 1, 2), ("all_reduce", 3, 8), {2: "step", 5: "step"}
    own = rank(0, agreed, loss, agreed, ("broadcast", 90, 5), pending=1)
    found = diagnose_program(
        evidence(*of_script(script, own, rank(1, agreed, loss, agreed, loss, pending=1), functions=functions))
    )
    assert (found.fault, found.rank) == ("branch", 0)
    assert f"` in line {line}, rank 1 did not" in found.finding
