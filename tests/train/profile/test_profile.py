"""`frog profile` as a user types it: real worlds of two under torch.profiler."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any

import pytest
from harness import Harness

from frog.core.runs.event_schema import CollectiveEvent, SpanEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.train.profile.numbers import OPERATORS, TRANSFER, WAITING, Profile, read_profile

STEPS = 5
FIRST_RECORDED = 2 + STEPS + 1 + 1
"""After 2 warm-up steps, the same number of plain steps as recorded ones, and one for the profiler to settle."""

PHASES = ("data", "forward", "backward", "reduce", "optimize", "zero")
SETTINGS = {
    "ddp": ("strategy.reduction=overlapped", "train.grad_accum=2"),
    "zero3": ("strategy.name=zero3",),
    "torch": ("strategy.implementation=torch", "strategy.name=zero3"),
}


@pytest.fixture(
    scope="module", params=["zero3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp", "torch"))]
)
def profiled(request: pytest.FixtureRequest, harness: Harness) -> tuple[str, RunFolder, str]:
    """Return the strategy, the run folder, and the printed output."""
    settings = (*SETTINGS[request.param], "comm.backend=gloo")  # the test looks for gloo's marks in torch's trace
    words = [word for text in settings for word in ("--set", text)]
    name = ("--name", f"prof-{request.param}")
    done = harness.run("frog", "profile", "run.toml", "--steps", str(STEPS), "--nproc", "2", *name, *words)
    assert "USDT" not in done.stderr
    return request.param, harness.folder(f"prof-{request.param}"), done.stdout


def spans(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["name"] == name]


@pytest.mark.slow
def test_each_rank_leaves_a_chrome_trace(profiled: tuple[str, RunFolder, str]) -> None:
    strategy, folder, _ = profiled
    num_micro = 2 if strategy == "ddp" else 1
    for rank in (0, 1):
        content = json.loads(folder.trace(rank).read_text())
        assert content["distributedInfo"]["rank"] == rank
        events = content["traceEvents"]
        steps = [spans(events, f"frog::step {number}") for number in range(FIRST_RECORDED, FIRST_RECORDED + STEPS)]
        assert [len(found) for found in steps] == [1] * STEPS
        for (step,) in steps:
            inside = [one for one in events if one["ph"] == "X" and step["ts"] <= one["ts"] < step["ts"] + step["dur"]]
            counts = Counter(one["name"] for one in inside)
            expected = {f"frog::{phase}": num_micro if phase in ("forward", "backward") else 1 for phase in PHASES}
            assert {name: counts[name] for name in expected} == expected
            assert any(name.startswith("gloo:all") for name in counts), counts
        assert all(event["pid"] == rank for event in events)


@pytest.mark.slow
def test_merged_trace_has_all_ranks_on_one_clock(profiled: tuple[str, RunFolder, str]) -> None:
    strategy, folder, _ = profiled
    events = json.loads(gzip.decompress((folder.profile / "trace.json.gz").read_bytes()))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [name.split(",")[0] for _, name in sorted(names.items())] == ["rank 0 (dp 0)", "rank 1 (dp 1)"]
    one, other = spans(events, f"frog::step {FIRST_RECORDED + STEPS - 1}")
    assert max(one["ts"], other["ts"]) < min(one["ts"] + one["dur"], other["ts"] + other["dur"])
    flows = Counter((event["ph"], event["id"]) for event in events if event["ph"] in ("s", "f"))
    assert set(flows.values()) == {1}
    begun = [event for event in events if event["ph"] == "b"]
    assert f"all_reduce over {'dp' if strategy == 'ddp' else 'world'}" in {event["name"] for event in begun}
    if strategy == "zero3":
        assert {event["name"] for event in begun} >= {"all_gather over dp", "reduce_scatter over dp"}
        # gloo's record of the collective, on torch's clock, begins within Frog's. Either may record its end first.
        ours = [event for event in begun if event["name"] == "reduce_scatter over dp" and event["pid"] == 0]
        ends = {event["id2"]["local"]: event["ts"] for event in events if event["ph"] == "e" and event["pid"] == 0}
        for theirs in (event for event in spans(events, "gloo:all_to_all") if event["pid"] == 0):
            start = theirs["ts"]
            assert any(event["ts"] <= start <= ends[event["id2"]["local"]] for event in ours) or start < ours[0]["ts"]


@pytest.mark.slow
def test_profile_parts_add_up(profiled: tuple[str, RunFolder, str]) -> None:
    strategy, folder, _ = profiled
    profile: Profile = read_profile(folder)
    assert [rank.rank for rank in profile.ranks] == [0, 1]
    for rank in profile.ranks:
        assert rank.num_steps == STEPS
        assert sum(rank.parts.values()) == pytest.approx(rank.step_us)
        assert sum(rank.phases.values()) == pytest.approx(rank.step_us)
        assert all(us >= 0 for us in rank.phases.values())
        assert all(us > 0 for name, us in rank.parts.items() if name != WAITING), rank.parts
        own_us = sum(call.self_us for call in rank.calls if call.is_work)
        assert own_us / STEPS == pytest.approx(rank.parts[OPERATORS])
        # The events time the same phases with their own clock, from just outside each mark.
        events = profile.run.ranks[rank.rank]
        trace = json.loads(folder.trace(rank.rank).read_text())["traceEvents"]
        steps = [spans(trace, f"frog::step {number}")[0] for number in range(FIRST_RECORDED, FIRST_RECORDED + STEPS)]
        for phase in PHASES:
            marks = [
                mark["dur"]
                for mark in sorted(spans(trace, f"frog::{phase}"), key=lambda mark: mark["ts"])
                if any(step["ts"] <= mark["ts"] < step["ts"] + step["dur"] for step in steps)
            ]
            reported = [span for span in events.of(SpanEvent) if span.phase == phase and span.step >= FIRST_RECORDED]
            reported_us = [(span.end_ns - span.start_ns) / 1e3 for span in reported]
            assert sum(marks) / STEPS == pytest.approx(rank.phases[phase], abs=0.1)
            more = [own - mark for mark, own in zip(marks, reported_us, strict=True)]
            assert min(more) > -5
            assert min(more) < rank.step_us / 10, "one may be interrupted at its edges, but not every one"
        assert rank.communication is not None
        if strategy != "torch":
            waits = [one.wait_ns / 1e3 for one in events.of(CollectiveEvent) if one.step >= FIRST_RECORDED]
            assert rank.parts[TRANSFER] + rank.parts[WAITING] <= sum(waits) / STEPS
            assert rank.parts[TRANSFER] + rank.parts[WAITING] == pytest.approx(rank.communication.blocked_us)
        assert rank.memory is not None
        assert rank.peak_bytes > 2**20


@pytest.mark.slow
def test_summary_fits_one_page(profiled: tuple[str, RunFolder, str]) -> None:
    _, folder, printed = profiled
    page = (folder.profile / "summary.md").read_text()
    assert printed.endswith(page)
    assert len(page.splitlines()) < 80
    assert "global batch 8 sequences = dp 2" in page
    for words in (
        "Where a step goes",
        "Communication",
        "Top operators",
        "Most expensive matrix products",
        "Memory",
        "GFLOP/s",
    ):
        assert words in page, words
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert sum(line.startswith("|    1 |") for line in tables) == 4


@pytest.mark.slow
def test_profiled_run_has_the_same_losses(profiled: tuple[str, RunFolder, str], harness: Harness) -> None:
    """The losses equal those without the profiler, and there is no checkpoint or last evaluation."""
    strategy, folder, _ = profiled
    num_steps = FIRST_RECORDED + STEPS - 1
    record = folder.read_record()
    assert record is not None
    assert (record.status, record.step) == ("completed", num_steps)
    assert not folder.checkpoints.exists()
    harness.run("frog", "report", str(folder.path))
    if strategy == "zero3":
        harness.train(2, "not-profiled", f"train.steps={num_steps}", *SETTINGS[strategy])
        plain, recorded = (harness.events(name).main.by_step(StepEvent) for name in ("not-profiled", folder.path.name))
        assert [e.loss_mean for e in recorded.values()] == [e.loss_mean for e in plain.values()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run.toml", "--steps", "0"), "argument --steps: 0: must be at least 1"),
        (("run.toml", "--nproc", "0"), "argument --nproc: 0: must be at least 1"),
        (("run.toml", "--nproc", "3"), "global_batch_size=8"),
        (("run.toml", "--nproc", "2", "--set", "strategy.tp=4"), "do not divide the world of 2"),
        (("run.toml", "--set", "train.stps=1"), "did you mean train.steps?"),
        (("absent.toml",), "absent.toml: no such run file"),
        (("run.toml", "--name", "a/b"), "name='a/b'"),
    ],
)
def test_profile_mistakes_are_reported_before_start(harness: Harness, words: tuple[str, ...], expected: str) -> None:
    before = {entry.name for entry in (harness.root / "runs").glob("*")}
    done = harness.run("frog", "profile", *words, code=2)
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert {entry.name for entry in (harness.root / "runs").glob("*")} == before
