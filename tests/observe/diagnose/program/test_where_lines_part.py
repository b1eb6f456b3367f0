"""What leaves out a call within a line, by a decorator, by an error or in a backward: the rules name it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from seen import evidence, failed, rank

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.evidence import Group, RankEvidence
from frog.observe.diagnose.program.program_diagnosis import diagnose_program

MISMATCH = ("op.preamble.length <= op.nbytes", "train.log")
SHARE = "def share(x):\n    dist.all_gather(parts, x)\n"
"""Its call is in line 2."""

Way = list[tuple[int, str]]
"""Lines and functions that led to a call, innermost first."""


def of_script(script: Path, one: RankEvidence, ways: dict[int, Way]) -> RankEvidence:
    """Move a rank's calls to the lines of a script: by the line of the call, unless it is one of the module's own."""
    for number, call in enumerate(one.calls):
        line = call.line.line if call.line else 0
        stack = [
            CodeLine(file=str(script), line=at, function=name) for at, name in ways.get(line, [(line, "<module>")])
        ]
        one.calls[number] = replace(call, line=stack[0], callers=tuple(stack))
    return one


def found_in(folder: Path, text: str, ways: dict[int, Way], *ranks: RankEvidence) -> Diagnosis:
    script = folder / "train.py"
    script.write_text(text)
    return diagnose_program(evidence(*(of_script(script, one, ways) for one in ranks)))


GATHER, SUM = ("all_gather", 4, 2), ("all_reduce", 8, 9)


@pytest.mark.parametrize(
    ("line", "fault", "words"),
    [
        (
            "    y = share(x) if len(x) else x",
            "skipped",
            "rank 0 made the call in `… if len(x) else …` in line 4, rank 1",
        ),
        ("    found = inf or share(x)", "skipped", "rank 0 made the call in `inf or share(x)` in line 4, rank 1"),
        ("    y = [share(x) for x in loader]", "batches", "rank 1 has left the loop `for x in loader` in line 4"),
        ("    y = share(x if len(x) else None)", "skipped", "rank 1 skipped all_gather at train.py:2 (share)"),
        ("    y = share(len(x) and x)", "skipped", "rank 1 skipped all_gather at train.py:2 (share)"),
    ],
)
def test_condition_or_loop_within_a_line_is_named(tmp_path: Path, line: str, fault: str, words: str) -> None:
    text = f"{SHARE}for step in range(9):\n{line}\n    dist.all_reduce(x)\n"
    sum_ = ("all_reduce", 8, 5)
    ways = {2: [(2, "share"), (4, "<module>")]}
    if fault == "batches":
        ways[2].insert(1, (4, "<listcomp>"))
    ranks = [
        rank(0, GATHER, GATHER, sum_, GATHER, GATHER, pending=1),
        rank(1, GATHER, GATHER, sum_, GATHER, sum_, pending=1),
    ]
    if fault == "skipped":
        ranks = [rank(0, GATHER, sum_, GATHER, pending=1), rank(1, GATHER, sum_, sum_, pending=1)]
    found = found_in(tmp_path, text, ways, *ranks)
    assert (found.fault, found.rank, found.line, found.certain) == (fault, 1, "train.py:5", False)
    assert words in found.finding


def test_test_that_leaves_out_the_last_call_of_a_loop_is_named_beside_its_rounds(tmp_path: Path) -> None:
    text = f"{SHARE}for name in metrics:\n    mean = share(x) if len(x) else x\ndist.barrier()\n"
    ways, barrier = {2: [(2, "share"), (4, "<module>")]}, ("barrier", 1, 5)
    found = found_in(tmp_path, text, ways, rank(0, GATHER, GATHER, pending=1), rank(1, GATHER, barrier, pending=1))
    assert (found.fault, found.rank) == ("batches", 1)
    assert found.finding.endswith("; or rank 1 left out this call in its last round, by `… if len(x) else …` in line 4")


def test_error_that_ends_a_round_is_a_way_out_of_the_loop_of_the_caller(tmp_path: Path) -> None:
    text = f"{SHARE}for x in loader:\n    try:\n        share(x)\n    except ValueError:\n        break\n"
    ways = {2: [(2, "share"), (5, "<module>")]}
    ended = rank(1, GATHER, state="ended", exit_code=0)
    found = found_in(tmp_path, text, ways, rank(0, GATHER, GATHER, pending=1), ended)
    assert (found.fault, found.rank) == ("batches", 1)
    assert found.finding.endswith("perhaps by `except ValueError: break` in line 6")


@pytest.mark.parametrize("decorator", ["@functools.lru_cache(maxsize=4)", "@cache", "@memoized"])
def test_function_whose_results_are_kept_is_named(tmp_path: Path, decorator: str) -> None:
    text = f"{decorator}\n{SHARE}for n in lengths:\n    share(n)\n    dist.all_reduce(x)\n"
    ways, gather, sum_ = {3: [(3, "share"), (5, "<module>")]}, ("all_gather", 4, 3), ("all_reduce", 8, 6)
    ranks = rank(0, gather, sum_, gather, pending=1), rank(1, gather, sum_, sum_, pending=1)
    found = found_in(tmp_path, text, ways, *ranks)
    assert (found.fault, found.rank) == ("skipped", 1)
    kept = f"rank 0 ran share, whose results are kept (`{decorator}` in line 2): rank 1 had this one"
    assert found.finding.endswith(kept)


def test_case_that_one_rank_took_is_named(tmp_path: Path) -> None:
    text = (
        "match kind:\n    case 'dense':\n        dist.all_reduce(x)\n    case 'sparse':\n        dist.all_gather(y)\n"
    )
    ranks = rank(0, ("all_reduce", 4, 3), pending=1), rank(1, ("all_gather", 4, 5), pending=1)
    found = found_in(tmp_path, text, {}, *ranks)
    assert (found.fault, found.certain) == ("branch", False)
    assert "rank 0 passed `case 'dense':` in line 2, rank 1 did not" in found.finding


@pytest.mark.parametrize("reported", [False, True])
def test_rank_that_an_error_led_to_its_call_is_named(tmp_path: Path, reported: bool) -> None:
    """The exception is at work in a `finally` or at the end of a `with`: nothing else shows it."""
    text = "try:\n    for x in loader:\n        dist.all_reduce(x)\nfinally:\n    dist.barrier()\n"
    step, barrier = ("all_reduce", 4, 3), ("barrier", 1, 5)
    error = failed("KeyError", "'weight'", 13)
    waits, left = rank(0, step, step, pending=1), rank(1, step, barrier, pending=1, handled=error)
    if reported:
        waits = rank(0, mismatch=MISMATCH, line=CodeLine(file=str(tmp_path / "train.py"), line=3), exit_code=-6)
    found = found_in(tmp_path, text, {}, waits, left)
    assert (found.fault, found.rank, found.line, found.certain) == ("skipped", 1, "train.py:5", False)
    words = "an error led rank 1 there, which it was handling: KeyError at train.py:13 (main): 'weight'"
    assert found.finding.endswith(words)
    waits.handled = error  # on both ranks, it explains nothing
    assert reported or words not in found_in(tmp_path, text, {}, waits, left).finding


def test_error_that_the_awaited_rank_handles_is_added() -> None:
    waits = rank(0, ("barrier", 1, 30), pending=1)
    busy = rank(1, state="running", line=CodeLine(file="t.py", line=9), handled=failed("OSError", "no space", 7))
    found = diagnose_program(evidence(waits, busy))
    assert found.rank == 1
    assert found.finding.endswith(
        "; an error led rank 1 there, which it was handling: OSError at train.py:7 (main): no space"
    )


def test_hook_of_a_gradient_that_one_rank_left_out_is_named(tmp_path: Path) -> None:
    """gloo ended the rank that is ahead, so that its record is lost."""
    text = f"{SHARE}for step in range(9):\n    loss.backward()\n    dist.all_reduce(x)\n"
    ways, sum_ = {2: [(2, "share"), (4, "<module>")]}, ("all_reduce", 8, 5)
    ahead = rank(1, mismatch=MISMATCH, line=CodeLine(file=str(tmp_path / "train.py"), line=5), exit_code=-6)
    found = found_in(tmp_path, text, ways, rank(0, *[GATHER, GATHER, sum_] * 3, GATHER, GATHER, pending=1), ahead)
    assert (found.fault, found.rank, found.line, found.certain) == ("skipped", 1, "train.py:5", False)
    assert (
        "in its usual order: rank 1 probably left out that one, which the backward at train.py:4 calls" in found.finding
    )


@pytest.mark.parametrize(
    ("test", "named"),
    [
        ("if tokens == 0:\n        return torch.zeros(x.shape)", True),
        ("if tokens == 0:\n        return x", False),
        ("return torch.zeros(x.shape)", False),
    ],
)
def test_statement_that_cuts_the_graph_is_named_with_a_call_of_a_backward(
    tmp_path: Path, test: str, named: bool
) -> None:
    """The loss of rank 1 does not depend on the exchange, so its backward leaves it out."""
    text = f"{SHARE}def expert(x, tokens):\n    {test}\nfor step in range(9):\n    loss.backward()\n    dist.sum(x)\n"
    backward = text.split("\n").index("    loss.backward()") + 1
    ways, sum_ = {2: [(2, "share"), (backward, "<module>")]}, ("all_reduce", 8, backward + 1)
    ranks = [rank(0, GATHER, sum_, GATHER, pending=1), rank(1, GATHER, sum_, sum_, pending=1)]
    found = found_in(tmp_path, text, ways, *ranks)
    assert (found.fault, found.rank) == ("skipped", 1)
    words = ", for example after `return torch.zeros(x.shape)` under `if tokens == 0:` in line 4"
    assert found.finding.endswith(words) == named


def test_branch_around_a_call_that_a_rank_skipped_for_that_of_another_group_is_named(tmp_path: Path) -> None:
    text = "for step in range(9):\n    if experts:\n        dist.all_reduce(own)\n    dist.all_reduce(total)\n"
    own, total = ("all_reduce", 8, 3), ("all_reduce", 1, 4)
    ranks = [rank(n, *[own, total] * 2, own, world=3, pending=1) for n in (0, 1)]
    ranks.append(rank(2, *[own, total] * 2, total, world=3, pending=1))
    script = tmp_path / "train.py"
    script.write_text(text)
    for one in ranks:
        of_script(script, one, {})
        numbers: dict[int | None, int] = {}
        for at, call in enumerate(one.calls):
            numbers[call.elements] = numbers.get(call.elements, 0) + 1
            group = Group((0, 1, 2), "1" if call.elements == 8 else "0")
            one.calls[at] = replace(call, group=group, seq=numbers[call.elements])
    found = diagnose_program(evidence(*ranks))
    assert (found.fault, found.rank, found.line, found.peer_line) == ("skipped", 2, "train.py:4", "train.py:3")
    assert found.finding.endswith("which it called before, which is under `if experts:` in line 2")


def test_comprehension_beside_a_call_is_not_a_loop_around_it(tmp_path: Path) -> None:
    more = "    if wanted(x):\n        dist.all_gather(more, x)\n"
    text = f"{SHARE}{more}for step in range(9):\n    share([x for _ in range(3)])\n    dist.all_reduce(x)\n"
    ways, sum_ = {2: [(2, "share"), (6, "<module>")], 4: [(4, "share"), (6, "<module>")]}, ("all_reduce", 8, 7)
    ranks = [rank(0, GATHER, ("all_gather", 4, 4), pending=1), rank(1, GATHER, sum_, pending=1)]
    found = found_in(tmp_path, text, ways, *ranks)
    assert (found.fault, found.rank) == ("branch", 0)
    assert "rank 0 passed `if wanted(x):` in line 3, rank 1 did not" in found.finding
