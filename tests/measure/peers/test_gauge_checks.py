"""The checks of `frog collectives check`, without processes: which sessions each asks for, what it says of a ring
without mistakes, and what the page and the JSON show.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frog.core.errors import UsageError
from frog.measure.peers import check
from frog.measure.peers.buffers import Unreadable
from frog.measure.peers.calls import Call, expected, make_inputs
from frog.measure.peers.checks import CHECKS, Outcome, Scope, examine
from frog.measure.peers.findings import Finding
from frog.measure.peers.observed import Breach, Fault, Observed, Plan, RankEnd, Shape

MEBI = 1 << 20
NONE = Unreadable("no-result", "the result file is missing")


def ring_session(plan: Plan) -> Observed:
    """Return a session of a ring without mistakes; after a fault, each rank names the one that it lost."""
    world = plan.world
    rng = np.random.default_rng(1)
    inputs = [make_inputs(call, world, rng) for call in plan.calls]
    results: list[list[Any]] = [
        [expected(call, inputs[n], rank).astype(call.dtype) for rank in range(world)]
        for n, call in enumerate(plan.calls)
    ]
    each = 2 * (world - 1) * plan.calls[0].payload_bytes // world
    sent = {(rank, (rank + 1) % world): each for rank in range(world)}
    seen = Observed(plan, inputs, results, [RankEnd(0, 1.0)] * world, sent, dict.fromkeys(sent, 1), 0.25)
    if plan.fault is None:
        return seen
    first, second = plan.fault.pair
    if first == second:
        ends = [RankEnd(-9, 0.4) if rank == first else RankEnd(1, 0.5 + rank, first) for rank in range(world)]
    else:
        ends = [
            RankEnd(1, 0.9, other) if other is not None else RankEnd(0, 0.7)
            for other in ({first: second, second: first}.get(rank) for rank in range(world))
        ]
    results = [[result if end.code == 0 else NONE for result, end in zip(results[0], ends, strict=True)]]
    return replace(seen, ends=ends, results=results, fault_at_s=0.4)


class Peer:
    """Runs plans without processes, and remembers them."""

    def __init__(self, change: Callable[[Observed], Observed] = lambda seen: seen) -> None:
        self.plans: list[Plan] = []
        self._change = change

    def __call__(self, plan: Plan) -> Observed:
        self.plans.append(plan)
        return self._change(ring_session(plan))


def outcomes(
    peer: Peer, *only: str, worlds: tuple[int, ...] = (2, 3, 4), operations: tuple[str, ...] = ("all_reduce",)
) -> dict[str, Outcome]:
    told: list[Outcome] = []
    found = examine(peer, Scope(worlds, operations), only, told.append)
    assert told == found
    return {outcome.check: outcome for outcome in found}


def test_ring_without_mistakes_passes_with_its_measurements() -> None:
    found = outcomes(Peer())
    assert list(found) == [one.name for one in CHECKS]
    assert {name: outcome.status for name, outcome in found.items() if outcome.status != "passed"} == {
        "operations": "skipped"
    }
    assert {name: outcome.measured for name, outcome in found.items()} == {
        "results": ("32 all-reduces at world 2, 3 and 4: correct on every rank, inputs unchanged",),
        "operations": ("no other operation was requested",),
        "connections": ("4 connections at world 4 for 11 calls",),
        "ring": (
            "a ring, 0 → 1 → 2 → 3 → 0",
            "the busiest rank moved 1,572,864 bytes; 2(n-1)/n x 1,048,576 is 1,572,864 (+0.00 %)",
        ),
        "large": ("16.0 MiB at world 2 in 250 ms",),
        "short-reads": ("24 bytes in pieces of 1 to 1021 bytes",),
        "slow-link": (
            "0 → 1 at 4 MB/s and 5 ms: correct, in 250 ms; a ring's 2(n-1) alpha + 2(n-1)/n B/beta is 423 ms",
        ),
        "killed-peer": (
            "rank 2 was killed after the first 466,033 bytes it sent; all had ended 1.1 s later: "
            "rank 0 lost 2, rank 1 lost 2",
            "rank 2 was killed after the first 1,398,100 bytes it sent; all had ended 1.1 s later: "
            "rank 0 lost 2, rank 1 lost 2",
        ),
        "reset-link": (
            "the link between rank 0 and rank 1 was reset after 699,050 bytes; all had ended 500 ms later: "
            "rank 2 had a correct result, rank 0 lost 1, rank 1 lost 0",
        ),
        "cut-link": (
            "the link between rank 0 and rank 1 fell silent after 699,050 bytes; all had ended 500 ms later: "
            "rank 2 had a correct result, rank 0 lost 1, rank 1 lost 0",
        ),
    }


@pytest.mark.parametrize(
    ("name", "worlds", "asked"),
    [
        ("results", (2, 3), ["results-2", "results-3"]),
        ("connections", (2, 3), ["results-3"]),
        ("ring", (2, 4), ["base-4"]),
        ("ring", (2,), []),
        ("large", (4,), ["large"]),
        ("short-reads", (2, 4), ["short-reads"]),
        ("slow-link", (2, 4), ["base-4", "slow-link"]),
        ("killed-peer", (2, 4), ["base-3", "kill-0", "kill-1"]),
        ("killed-peer", (2,), ["base-2", "kill-0", "kill-1"]),
        ("reset-link", (4,), ["base-3", "base-3", "reset-0"]),
        ("cut-link", (2,), ["base-2", "base-2", "cut-0"]),
    ],
)
def test_check_runs_these_sessions(name: str, worlds: tuple[int, ...], asked: list[str]) -> None:
    peer = Peer()
    assert outcomes(peer, name, worlds=worlds)[name].status == ("passed" if asked else "skipped")
    assert [plan.name for plan in peer.plans] == asked
    for plan in peer.plans:
        assert plan.timeout_s == (3.0 if plan.fault else 30.0)
        if plan.name.startswith(("base", "slow", "kill", "reset", "cut")):
            assert plan.calls == (Call("all_reduce", "float32", MEBI // 4),)
        expected_world = 2 if plan.name == "large" else min(3, max(worlds)) if plan.fault else None
        assert expected_world in (None, plan.world)


def test_sessions_differ_in_their_links_and_calls() -> None:
    peer = Peer()
    outcomes(peer, "large", "short-reads", "slow-link", "killed-peer", "reset-link", worlds=(3,))
    plans = {plan.name: plan for plan in peer.plans}
    assert plans["large"].calls == (Call("all_reduce", "float32", 4 * MEBI),)
    assert plans["short-reads"].calls == (Call("all_reduce", "float32", 1), Call("all_reduce", "float64", 997))
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert plans["short-reads"].shapes == dict.fromkeys(pairs, Shape(in_pieces=True))
    assert plans["slow-link"].shapes == {(0, 1): Shape(4e6, 0.005)}
    assert plans["kill-0"].fault == Fault("kill", (2, 2), 466_033)
    assert plans["kill-1"].fault == Fault("kill", (2, 2), 1_398_100)
    assert plans["reset-0"].fault == Fault("reset", (0, 1), 699_050)


def test_slow_and_broken_links_are_the_busiest() -> None:
    def more_back(seen: Observed) -> Observed:
        return replace(seen, sent={**seen.sent, (2, 1): 2 * MEBI, (1, 0): 2 * MEBI})

    peer = Peer(more_back)
    outcomes(peer, "slow-link", "reset-link", worlds=(3,))
    assert [*peer.plans[1].shapes] == [(1, 0)]
    assert peer.plans[-1].fault == Fault("reset", (1, 0), MEBI)


def test_other_operations_are_checked_in_every_world_unless_the_peer_has_none() -> None:
    def without_gather(seen: Observed) -> Observed:
        lacks = seen.plan.calls[0].operation == "all_gather"
        return replace(seen, ends=[RankEnd(3, 1.0)] * seen.world) if lacks else seen

    peer = Peer(without_gather)
    found = outcomes(peer, "operations", worlds=(2, 4), operations=("all_reduce", "all_gather", "broadcast"))
    assert found["operations"].measured == (
        "all_gather: the peer reports that it does not support it",
        "broadcast: correct at world 2 and 4",
    )
    assert [plan.name for plan in peer.plans] == ["all_gather-2", "broadcast-2", "broadcast-4"]


def wrong_results(seen: Observed) -> Observed:
    return replace(seen, results=[[NONE] * seen.world for _ in seen.plan.calls])


@pytest.mark.parametrize(
    ("name", "change", "finding"),
    [
        ("results", wrong_results, "no-result"),
        ("operations", wrong_results, "no-result"),
        ("large", wrong_results, "no-result"),
        ("large", lambda seen: replace(seen, breach=Breach("never-ends", "no more bytes.")), "deadlock"),
        ("short-reads", wrong_results, "short-read"),
        ("connections", lambda seen: replace(seen, connections={(0, 1): 6}), "connection-per-call"),
        ("ring", lambda seen: replace(seen, sent=dict.fromkeys(seen.sent, 4 * MEBI)), "whole-buffers"),
        ("killed-peer", lambda seen: replace(seen, left=[0]) if seen.plan.fault else seen, "left-over"),
        *((name, lambda seen: replace(seen, left=[0]), "left-over") for name in ("results", "connections", "ring")),
    ],
)
def test_check_rejects_with_its_finding(name: str, change: Callable[[Observed], Observed], finding: str) -> None:
    outcome = outcomes(Peer(change), name, operations=("broadcast",))[name]
    assert (outcome.status, outcome.measured) == ("rejected", ())
    assert outcome.finding is not None
    assert outcome.finding.id == finding


def test_findings_of_large_and_short_reads_say_what_was_special() -> None:
    stuck = outcomes(Peer(lambda seen: replace(seen, breach=Breach("never-ends", "no more bytes."))), "large")["large"]
    assert stuck.finding is not None
    assert stuck.finding.observed == (
        "16.0 MiB, world 2: no more bytes. Rank none had not ended; 33,554,432 bytes had been sent in all."
    )
    short = outcomes(Peer(wrong_results), "short-reads", worlds=(2,))["short-reads"]
    assert short.finding is not None
    assert short.finding.observed == (
        "Every link delivered 1 to 1021 bytes at a time. world 2, all_reduce of 997 float64: rank 0: the result file "
        "is missing."
    )


@pytest.mark.parametrize(
    "change", [wrong_results, lambda seen: replace(seen, sent={}), lambda seen: replace(seen, left=[1])]
)
@pytest.mark.parametrize("name", ["slow-link", "killed-peer", "reset-link", "cut-link"])
def test_faults_need_a_correct_undisturbed_session(name: str, change: Callable[[Observed], Observed]) -> None:
    outcome = outcomes(Peer(change), name, worlds=(2,))[name]
    assert (outcome.status, outcome.measured) == (
        "skipped",
        ("an undisturbed all-reduce at world 2 is not correct yet",),
    )


def test_link_with_too_few_bytes_had_no_fault() -> None:
    def too_few(seen: Observed) -> Observed:
        return ring_session(replace(seen.plan, fault=None)) if seen.plan.fault else seen

    for name, after in (("reset-link", "699,050"), ("cut-link", "699,050")):
        (said,) = outcomes(Peer(too_few), name, worlds=(3,))[name].measured
        assert said == f"fewer than {after} bytes used this link: no fault occurred"


def test_wrong_results_skip_what_follows_and_exit_first_ends() -> None:
    found = outcomes(Peer(wrong_results), "results", "ring", "large")
    assert [(outcome.status, outcome.measured) for outcome in found.values()] == [
        ("rejected", ()),
        ("skipped", ("correct results first",)),
        ("skipped", ("correct results first",)),
    ]
    scope = Scope((2,), ("all_reduce",))
    assert len(examine(Peer(wrong_results), scope, (), lambda _: None, True)) == 1
    for name, number in (("connections", 1), ("results", 2)):  # another rejection than that of `results` skips nothing
        change = {"connections": lambda seen: replace(seen, left=[0]), "results": lambda seen: seen}[name]
        assert len(examine(Peer(change), scope, ("connections", "large"), lambda _: None, True)) == number
    kept_on = examine(Peer(lambda seen: replace(seen, left=[0])), scope, ("connections", "large"), lambda _: None)
    assert [outcome.status for outcome in kept_on] == ["rejected", "rejected"]


# ---- what the user sees ----------------------------------------------------------------------------------------------


def test_each_plan_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[str], Path, int]] = []

    def run_session(plan: Plan, command: list[str], folder: Path, seed: int) -> Observed:
        assert folder.is_dir()
        ran.append((plan.name, command, folder, seed))
        return ring_session(plan)

    monkeypatch.setattr(check, "run_session", run_session)
    observe = check.remembered(["ring"], tmp_path, 7)
    plan = Plan("one", 2, (Call("all_reduce", "float32", 4),))
    assert observe(plan) is observe(plan)
    observe(replace(plan, name="two"))
    assert ran == [("one", ["ring"], tmp_path / "one", 7), ("two", ["ring"], tmp_path / "two", 7)]


FINDING = Finding("averaged", "it is half")
OUTCOMES = [
    Outcome("results", "passed", ("32 of them", "and more"), None, 1.23456),
    Outcome("ring", "rejected", (), FINDING, 0.0004),
    Outcome("large", "skipped", ("correct results first",)),
]


def test_json_has_every_outcome() -> None:
    table = check.as_table("ring.py", 5, Scope((2, 3), ("all_reduce",)), OUTCOMES)
    empty = dict.fromkeys(("finding", "observed", "belief", "question"))
    assert table == {
        "peer": "ring.py",
        "seed": 5,
        "worlds": (2, 3),
        "operations": ("all_reduce",),
        "passed": False,
        "checks": [
            {"check": "results", "status": "passed", "seconds": 1.235, "measured": ("32 of them", "and more"), **empty},
            {
                "check": "ring", "status": "rejected", "seconds": 0.0, "measured": (),
                "finding": "averaged", "observed": "it is half",
                "belief": "all-reduce takes the mean",
                "question": "The list says sum. Who divides in data-parallel training, and when?",
            },
            {
                "check": "large", "status": "skipped", "seconds": 0.0, "measured": ("correct results first",),
                **empty,
            },
        ],
    }  # fmt: skip
    assert check.as_table("p", 1, Scope((2,), ()), OUTCOMES[::2])["passed"] is True


def test_text_shows_each_outcome_with_its_mark(capsys: pytest.CaptureFixture[str]) -> None:
    for outcome in OUTCOMES:
        check._print(outcome)
    indent = " " * 15
    assert capsys.readouterr().out.splitlines() == [
        "✓ results      sums are correct: exact ones bit for bit, others equal on all ranks",
        f"{indent}32 of them",
        f"{indent}and more",
        "✗ ring         the busiest rank moves no more than in a ring",
        f"{indent}it is half",
        f"{indent}A misconception behind this result: all-reduce takes the mean.",
        f"{indent}The list says sum. Who divides in data-parallel training, and when?",
        "· large        correct results first",
    ]
    check._print_text("word " * 40)
    lines = capsys.readouterr().out.splitlines()
    assert [(line[:16], len(line)) for line in lines] == [(f"{indent}w", 114), (f"{indent}w", 114)]  # 20 words in 118


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"world": (2, 3)}, ["--world", "2,3"]),
        (
            {"operations": ("all_reduce", "broadcast"), "only": ["ring", "large"], "exit_first": True},
            ["--operations", "all_reduce,broadcast", "--only", "ring", "--only", "large", "--exit-first"],
        ),
    ],
)
def test_options_repeat_the_same_sessions(changes: dict[str, Any], words: list[str]) -> None:
    given = {"peer": "a b", "world": None, "operations": ("all_reduce",), "only": [], "exit_first": False, **changes}
    assert check._repeating(argparse.Namespace(**given), 5) == ["--peer", "a b", "--seed", "5", *words]


@pytest.mark.parametrize("keep", [None, Path("kept")])
def test_summary_counts_and_says_how_to_repeat(keep: Path | None, capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(
        peer="ring.py", world=None, operations=("all_reduce",), only=[], exit_first=False, keep=keep
    )
    kept = ["every rank's files and output: kept"] if keep else []
    check._print_end(args, OUTCOMES, 5, 61.25)
    assert capsys.readouterr().out.splitlines() == [
        "1 passed, 1 rejected, 1 skipped; 61.2 s",
        "to repeat: frog collectives check --peer ring.py --seed 5",
        *kept,
    ]
    check._print_end(args, OUTCOMES[:1], 5, 0.0)
    assert capsys.readouterr().out.splitlines() == ["1 passed, 0 rejected, 0 skipped; 0.0 s", *kept]


def test_worlds_are_sorted_and_once_and_the_code_says_whether_a_check_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Scope, int]] = []
    monkeypatch.setattr(check, "remembered", lambda command, folder, seed: seed)
    for found, code in ((OUTCOMES, 1), (OUTCOMES[::2], 0)):
        for world, seed in ((None, None), ((4, 2, 4), 9)):
            monkeypatch.setattr(
                check, "examine", lambda seed, scope, *others, found=found: asked.append((scope, seed)) or found
            )
            args = argparse.Namespace(
                peer="ring.py", world=world, operations=("all_reduce",), only=[], exit_first=False, keep=None,
                seed=seed, json=False,
            )  # fmt: skip
            assert check.check(args) == code
    assert [scope.worlds for scope, _ in asked] == [(2, 3, 4), (2, 4)] * 2
    assert [seed for _, seed in asked][1::2] == [9, 9]
    assert all(0 <= seed < 1_000_000 for _, seed in asked)
    capsys.readouterr()


def test_kept_folder_may_exist_if_it_is_empty(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "below", tmp_path / "empty"):
        if folder.name == "empty":
            folder.mkdir()
        with check._folder(folder) as found:
            assert (found, folder.is_dir()) == (folder.resolve(), True)
    (tmp_path / "empty" / "file").touch()
    with pytest.raises(UsageError, match="the folder is not empty"), check._folder(tmp_path / "empty"):
        pytest.fail("it was used")
    with check._folder(None) as scratch:
        assert scratch.name.startswith("frog-peers-")
    assert not scratch.exists()
